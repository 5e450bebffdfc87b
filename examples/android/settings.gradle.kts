pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "eliza-example"
include(":eliza-inference")
project(":eliza-inference").projectDir = file("../../android")
