package ai.eliza.inference;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/** Texts on their way to native code. */
final class Utf8 {
    private Utf8() {}

    /** The text's bytes in a direct buffer of just that capacity. */
    static ByteBuffer direct(String text, String name) {
        ByteBuffer bytes;
        try {
            bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
        } catch (CharacterCodingException broken) {
            throw ElizaException.of(-2, "Invalid argument: " + name + " has a surrogate without its partner");
        }
        ByteBuffer direct = ByteBuffer.allocateDirect(bytes.remaining());
        direct.put(bytes);
        return direct;
    }

    /** As {@link #direct}; null stays null. */
    static ByteBuffer directOrNull(String text, String name) {
        return text == null ? null : direct(text, name);
    }

    /** Several texts one after the other; {@code ends} gets the end of each in bytes. */
    static ByteBuffer direct(String[] texts, String name, int[] ends) {
        int end = 0;
        for (int i = 0; i < texts.length; i++) {
            end += direct(texts[i], name + "[" + i + "]").capacity();
            ends[i] = end;
        }
        return direct(String.join("", texts), name);
    }
}
