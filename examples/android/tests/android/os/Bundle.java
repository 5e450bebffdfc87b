package android.os;

/** A stand-in. */
public final class Bundle {}
