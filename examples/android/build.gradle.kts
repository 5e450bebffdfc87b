// An app of one activity. settings.gradle.kts includes the library's module from the folder android/.
plugins {
    id("com.android.application") version "8.7.3"
}

android {
    namespace = "ai.eliza.example"
    compileSdk = 35

    defaultConfig {
        applicationId = "ai.eliza.example"
        minSdk = 26
        targetSdk = 35
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
}

dependencies {
    implementation(project(":eliza-inference"))
}
