//! The C exports: handles, strings, errors, panic boundary. One file per C noun.
