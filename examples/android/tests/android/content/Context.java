package android.content;

import java.io.File;

/** A stand-in: the files of the app are in the folder that the property says. */
public class Context {
    public File getFilesDir() {
        return new File(System.getProperty("files"));
    }
}
