// The library module ai.eliza.inference. tools/android_build.sh builds the native libraries that it packs.
plugins {
    id("com.android.library")
}

android {
    namespace = "ai.eliza.inference"
    compileSdk = 35

    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }

    sourceSets {
        getByName("main") {
            jniLibs.srcDir("../target/android/jniLibs")
        }
    }
}

// Without the native library every app that uses this would fail on its first call.
val nativeLibraries = file("../target/android/jniLibs")
tasks.named("preBuild") {
    doFirst {
        for (abi in listOf("arm64-v8a", "x86_64")) {
            val library = nativeLibraries.resolve("$abi/libelizainference_jni.so")
            check(library.exists()) { "$library is not there: run tools/android_build.sh with an NDK" }
        }
    }
}
