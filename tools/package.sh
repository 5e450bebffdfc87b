#!/usr/bin/env bash
# Puts the release build under a prefix, for C and C++ hosts, or takes it away again: package.sh install | uninstall
#
# PREFIX   where it will be, /usr/local unless told
# LIBDIR   the libraries' folder below it, lib unless told (lib64, lib/x86_64-linux-gnu, ...)
# DESTDIR  a folder in front of that, for those who make packages
#
# No file holds PREFIX: what is installed may be moved as a whole.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-}
[[ $mode == install || $mode == uninstall ]] || { echo "package.sh install | uninstall" >&2; exit 2; }
prefix=${DESTDIR:-}${PREFIX:-/usr/local}
libdir=${LIBDIR:-lib}
case "$libdir" in /* | *..*) echo "LIBDIR is below PREFIX: $libdir" >&2; exit 2 ;; esac

part() { sed -n "s/^#define ELIZA_STREAM_ABI_$1 //p" include/eliza_inference.h; }
major=$(part MAJOR)
version=$major.$(part MINOR).$(part PATCH)
# From the folder of the .pc file, and of the CMake files, to the prefix.
up=$(sed 's|[^/][^/]*|..|g' <<<"$libdir")

# One file under the prefix: put_file MODE SOURCE PATH. A link to a file beside it: put_link TARGET PATH.
put_file() {
    rm -f "$prefix/$3"
    [[ $mode == uninstall ]] || { mkdir -p "$prefix/$(dirname "$3")" && install -m "$1" "$2" "$prefix/$3"; }
}
put_link() {
    rm -f "$prefix/$2"
    [[ $mode == uninstall ]] || ln -s "$1" "$prefix/$2"
}
put_filled() {
    sed -e "s|@VERSION@|$version|g" -e "s|@MAJOR@|$major|g" -e "s|@LIBDIR@|$libdir|g" -e "s|@UP@|$up|g" \
        -e "s|@POINTER@|$pointer|g" "tools/package/$(basename "$1").in" >"$scratch"
    put_file 644 "$scratch" "$1"
}
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
pointer=$(($(getconf LONG_BIT) / 8))

built=target/release
case "$(uname -s)" in
Darwin)
    put_file 755 $built/libelizainference.dylib "$libdir/libelizainference.$version.dylib"
    put_link "libelizainference.$version.dylib" "$libdir/libelizainference.$major.dylib"
    put_link "libelizainference.$major.dylib" "$libdir/libelizainference.dylib"
    put_file 755 $built/eliza-inference bin/eliza-inference
    ;;
MINGW* | MSYS* | CYGWIN*)
    put_file 755 $built/elizainference.dll bin/elizainference.dll
    # By the compiler that Rust was set up for there is one or the other.
    for import in elizainference.dll.lib libelizainference.dll.a; do
        if [[ $mode == uninstall || -f $built/$import ]]; then put_file 644 "$built/$import" "$libdir/$import"; fi
    done
    put_file 755 $built/eliza-inference.exe bin/eliza-inference.exe
    ;;
*)
    put_file 755 $built/libelizainference.so "$libdir/libelizainference.so.$version"
    put_link "libelizainference.so.$version" "$libdir/libelizainference.so.$major"
    put_link "libelizainference.so.$major" "$libdir/libelizainference.so"
    put_file 755 $built/eliza-inference bin/eliza-inference
    ;;
esac
put_file 644 include/eliza_inference.h include/eliza_inference.h
put_file 644 include/eliza_inference.hpp include/eliza_inference.hpp
put_filled "$libdir/pkgconfig/elizainference.pc"
put_filled "$libdir/cmake/elizainference/elizainferenceConfig.cmake"
put_filled "$libdir/cmake/elizainference/elizainferenceConfigVersion.cmake"
if [[ $mode == uninstall ]]; then rmdir "$prefix/$libdir/cmake/elizainference" 2>/dev/null || true; fi
