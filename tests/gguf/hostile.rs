//! Broken and hostile files: every one ends in an error that names the place or in a correct load, never in a panic,
//! and never takes more memory than 16 times the file plus 1 MiB.

use crate::testing::allocator::most_held;
use elizainference::gguf::{File, Value, Writer};
use elizainference::quant::TensorType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Load a file as any bytes may be loaded: without a panic, within the memory bound; a load that succeeds is read
/// whole.
fn load(bytes: &[u8]) -> Result<File, String> {
    let owned = bytes.to_vec();
    let (loaded, peak) = most_held(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let file = File::from_bytes(owned);
            if let Ok(file) = &file {
                read_everything(file);
            }
            file
        }))
    });
    let bound = 16 * bytes.len() + (1 << 20);
    assert!(peak <= bound, "{peak} bytes were held for a file of {}", bytes.len());
    let kept = std::env::temp_dir().join("gguf-hostile-failure.gguf");
    let loaded = loaded.unwrap_or_else(|_| {
        std::fs::write(&kept, bytes).unwrap();
        panic!("a panic on the file kept as {}", kept.display());
    });
    loaded.map_err(|e| e.to_string())
}

fn read_everything(file: &File) {
    for (key, value) in file.metadata() {
        assert!(file.value(key) == Some(value) || matches!(value, Value::F32(_) | Value::F64(_)), "{key}");
        let _ = (file.get::<u32>(key), file.get::<bool>(key), file.get::<f32>(key), file.get::<String>(key));
        if let Value::Array(array) = value {
            let len = Some(array.len);
            let strings = file.strings(key).is_ok_and(|s| s.map(|s| s.len()) == len);
            let floats = file.floats(key).is_ok_and(|s| s.map(|s| s.len()) == len);
            let integers = file.integers(key).is_ok_and(|s| s.map(|s| s.len()) == len);
            assert!(strings || floats || integers, "array `{key}` of {:?} cannot be read", array.element);
        }
    }
    for info in file.tensors() {
        assert_eq!(file.tensor(&info.name), Some(info));
        assert_eq!(file.read(info).unwrap().len() as u64, info.bytes, "{}", info.name);
        let _ = (info.tensor_type(), info.elements());
    }
}

/// A small file with every metadata type and several tensor types.
pub fn sample() -> Vec<u8> {
    let mut w = Writer::new(3);
    w.set("general.architecture", "llama").set("general.name", "sample").set("general.alignment", 64u32);
    w.set("u8", 1u8).set("i8", -1i8).set("u16", 2u16).set("i16", -2i16).set("u32", 3u32).set("i32", -3i32);
    w.set("f32", 1.5f32).set("bool", true).set("u64", 4u64).set("i64", -4i64).set("f64", 2.5f64);
    w.set("u8s", vec![1u8, 2]).set("i16s", vec![-1i16, 2]).set("f32s", vec![0.5f32, 1.5]).set("f64s", vec![0.25f64]);
    w.set("bools", vec![true, false]).set("u64s", vec![u64::MAX]).set("none", Vec::<i32>::new());
    w.set("tokenizer.ggml.tokens", vec!["<s>".to_string(), "é".into(), String::new(), "\n".into()]);
    for (name, shape, ty) in [
        ("token_embd.weight", &[4u64, 3][..], TensorType::F32),
        ("blk.0.attn_q.weight", &[32, 2], TensorType::Q8_0),
        ("blk.0.ffn_up.weight", &[256, 1], TensorType::Q4_K),
        ("blk.0.norm", &[5], TensorType::F16),
        ("scalar", &[], TensorType::F32),
        ("nothing", &[32, 0], TensorType::Q4_0),
        ("cube", &[2, 2, 2, 2], TensorType::I8),
    ] {
        let bytes = shape.iter().skip(1).product::<u64>() * ty.row_bytes(*shape.first().unwrap_or(&1)).unwrap();
        w.tensor(name, shape, ty, (0..bytes).map(|i| i as u8).collect());
    }
    w.to_bytes().unwrap()
}

#[test]
fn the_sample_is_sound() {
    let bytes = sample();
    let file = load(&bytes).unwrap();
    assert_eq!((file.tensors().len(), file.metadata().count(), file.alignment()), (7, 22, 64));
    assert_eq!(file.size(), bytes.len() as u64);
}

#[test]
fn files_cut_at_every_byte() {
    let bytes = sample();
    let file = load(&bytes).unwrap();
    let last = file.tensors().iter().map(|t| (t.offset + t.bytes) as usize).max().unwrap();
    for len in 0..bytes.len() {
        match load(&bytes[..len]) {
            Err(error) => assert!(len < last && error.contains("offset"), "{len} bytes: {error}"),
            Ok(_) => assert!(len >= last, "a file cut to {len} of {last} bytes was accepted"),
        }
    }
}

/// Change one to four bytes, anywhere but mostly in the header, `rounds` times.
fn flip_bytes(rounds: u64, seed: u64) {
    let good = sample();
    let header = load(&good).unwrap().tensors().iter().map(|t| t.offset).min().unwrap() as usize;
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut accepted = 0;
    for _ in 0..rounds {
        let mut bytes = good.clone();
        for _ in 0..=random(4) {
            let at = if random(8) == 0 { random(good.len()) } else { random(header) };
            bytes[at] = match random(4) {
                0 => 0xff,
                1 => bytes[at] ^ 1 << random(8),
                2 => bytes[at].wrapping_add(1),
                _ => random(256) as u8,
            };
        }
        accepted += u64::from(load(&bytes).is_ok());
    }
    // Flips in text and data leave a valid file; a reader that takes none, or all, has stopped looking.
    assert!(accepted > rounds / 50 && accepted < rounds * 9 / 10, "{accepted} of {rounds} were accepted");
}

#[test]
fn random_byte_flips() {
    flip_bytes(2_000, 1);
}

#[test]
#[ignore = "long; `make deep` runs it"]
fn many_random_byte_flips() {
    flip_bytes(100_000, 2);
}

/// A header by hand.
struct Header(Vec<u8>);

impl Header {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Header(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn text(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let header = self.text(name.as_bytes()).u32(shape.len() as u32);
        shape.iter().fold(header, |h, n| h.u64(*n)).u32(ty).u64(offset)
    }

    fn zeros(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    fn load(&self) -> Result<File, String> {
        load(&self.0)
    }

    #[track_caller]
    fn refused(self, parts: &[&str]) {
        let error = self.load().err().expect("the file was accepted");
        for part in parts {
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
    }
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn magic_and_version() {
    Header(Vec::new()).refused(&["magic", "offset 0", "4 bytes are needed, 0 are left"]);
    Header(b"GGML\x03\0\0\0".to_vec()).refused(&["magic", "offset 0"]);
    for version in [0, 1, 4, u32::MAX] {
        Header::new(version, 0, 0).refused(&["version", "offset 4", &version.to_string()]);
    }
    Header::new(3 << 24, 0, 0).refused(&["version", "big-endian"]);
    for version in [2, 3] {
        assert_eq!(Header::new(version, 0, 0).load().unwrap().version(), version);
    }
}

#[test]
fn counts_are_checked_against_the_file() {
    for huge in [1 << 63, u64::MAX, 1 << 40, 100] {
        Header::new(3, huge, 0).refused(&["tensor count", "offset 8", &huge.to_string()]);
        Header::new(3, 0, huge).refused(&["key count", "offset 16", &huge.to_string()]);
        Header::new(3, 0, 1).u64(huge).zeros(32).refused(&["name of key 0", "offset 24", &huge.to_string()]);
        Header::new(3, 0, 1).text(b"k").u32(STRING).u64(huge).zeros(32).refused(&["key `k`", "offset 37"]);
        for element in 0..13 {
            if element != ARRAY {
                let header = Header::new(3, 0, 1).text(b"k").u32(ARRAY).u32(element).u64(huge).zeros(32);
                header.refused(&["key `k`", "offset 41", &huge.to_string()]);
            }
        }
        Header::new(3, 1, 0).u64(huge).zeros(32).refused(&["name of tensor 0", "offset 24", &huge.to_string()]);
    }
    // An array whose strings run out.
    let header = Header::new(3, 0, 1).text(b"k").u32(ARRAY).u32(STRING).u64(2).text(b"ok").u64(1 << 60);
    header.refused(&["key `k`", "offset 59"]);
}

#[test]
fn keys() {
    Header::new(3, 0, 1).u64(0).u32(4).u32(7).refused(&["key 0", "offset 24", "empty"]);
    Header::new(3, 0, 1).text(b"\xff\xfe").u32(4).u32(7).refused(&["name of key 0", "offset 24", "UTF-8"]);
    let header = Header::new(3, 0, 1).text(b"k").u32(STRING).text(b"a\xc3");
    header.refused(&["key `k`", "offset 37", "UTF-8"]);
    let header = Header::new(3, 0, 1).text(b"k").u32(ARRAY).u32(STRING).u64(2).text(b"ok").text(b"\x80");
    header.refused(&["key `k`", "offset 59", "UTF-8"]);
    for bad in [13, 14, u32::MAX] {
        Header::new(3, 0, 1).text(b"k").u32(bad).u64(7).refused(&["key `k`", "offset 33", &bad.to_string()]);
        let header = Header::new(3, 0, 1).text(b"k").u32(ARRAY).u32(bad).u64(0);
        header.refused(&["key `k`", "offset 37", &bad.to_string()]);
    }
    // Arrays of arrays, as deep as the file goes.
    let nested = (0..10_000).fold(Header::new(3, 0, 1).text(b"k").u32(ARRAY), |h, _| h.u32(ARRAY).u64(1));
    nested.refused(&["key `k`", "offset 37", "arrays of arrays"]);
    let twice = Header::new(3, 0, 2).text(b"same").u32(4).u32(1).text(b"same").u32(4).u32(2);
    twice.refused(&["key `same`", "offset 56", "twice"]);
    // A bool byte other than 0 and 1 is true; empty arrays are fine.
    let file = Header::new(3, 0, 2).text(b"b").u32(7).bytes(&[2]).text(b"a").u32(ARRAY).u32(4).u64(0).load().unwrap();
    assert_eq!(file.require::<bool>("b"), Ok(true));
    assert_eq!(file.integers("a"), Ok(Some(vec![])));
    // Wrong types are named with their place.
    let error = file.get::<u32>("a").unwrap_err().to_string();
    assert!(error.contains("key `a`") && error.contains("offset 47") && error.contains("Array"), "{error}");
    // What a terminal would obey is escaped, and a long name is cut.
    let error = Header::new(3, 0, 1).text(b"\x1b[2J").u32(13).load().err().unwrap();
    assert!(error.contains(r"\u{1b}[2J") && !error.contains('\x1b'), "{error}");
    let error = Header::new(3, 0, 1).text(&[b'x'; 5000]).u32(13).load().err().unwrap();
    assert!(error.len() < 300, "{error}");
}

#[test]
fn alignment_and_splits() {
    let key = |ty: u32| Header::new(3, 0, 1).text(b"general.alignment").u32(ty);
    for bad in [0, 31, 48] {
        key(4).u32(bad).refused(&["general.alignment", "offset 49", &bad.to_string()]);
    }
    key(10).u64(32).refused(&["general.alignment", "offset 49", "U64"]);
    assert_eq!(key(4).u32(1 << 31).load().unwrap().alignment(), 1 << 31);
    let header = Header::new(3, 1, 1).text(b"general.alignment").u32(4).u32(1 << 31);
    header.tensor("t", &[1], 0, 0).zeros(64).refused(&["tensor `t`", "ends at byte"]);

    let split = |n: u8| Header::new(3, 0, 1).text(b"split.count").u32(2).bytes(&[n, 0]);
    split(3).refused(&["split.count", "3"]);
    assert!(split(1).load().is_ok());
}

#[test]
fn tensors() {
    let one = |shape: &[u64], ty, offset| Header::new(3, 1, 0).tensor("t", shape, ty, offset).zeros(64);
    assert!(one(&[4], 0, 0).load().is_ok());
    for shape in [&[1 << 40, 1 << 40][..], &[1 << 62, 4], &[1 << 62], &[3, 1 << 32, 1 << 32], &[0, 1 << 40, 1 << 40]] {
        one(shape, 0, 0).refused(&["tensor `t`", "offset"]);
    }
    one(&[u64::MAX], 0, 0).refused(&["tensor `t`", "offset 37", "-1"]);
    one(&[1 << 40], 24, 0).refused(&["tensor `t`", "ends at byte"]);
    one(&[1, 1, 1, 1, 1], 0, 0).refused(&["tensor `t`", "offset 33", "5 dimensions"]);
    one(&[16], 2, 0).refused(&["tensor `t`", "offset 37", "16", "Q4_0"]);
    one(&[4], 0, 16).refused(&["tensor `t`", "alignment 32"]);
    one(&[4], 0, 1 << 40).refused(&["tensor `t`", "ends at byte"]);
    one(&[4], 0, u64::MAX - 31).refused(&["tensor `t`", "overflow"]);
    one(&[12], 0, 32).refused(&["tensor `t`", "ends at byte"]);

    Header::new(3, 1, 0).text(&[b'n'; 64]).zeros(64).refused(&["offset 24", "64 bytes, at most 63"]);
    Header::new(3, 1, 0).text(b"\xc0").zeros(64).refused(&["name of tensor 0", "offset 24", "UTF-8"]);
    let two =
        |name: &str, offset| Header::new(3, 2, 0).tensor("a", &[9], 0, 0).tensor(name, &[9], 0, offset).zeros(128);
    assert!(two("b", 64).load().is_ok());
    two("b", 0).refused(&["tensor `b`", "overlaps", "tensor `a`"]);
    two("b", 32).refused(&["tensor `b`", "overlaps", "tensor `a`"]);
    two("a", 64).refused(&["tensor `a`", "twice"]);
    // In another order than the data.
    let file = Header::new(3, 2, 0).tensor("a", &[8], 0, 32).tensor("b", &[8], 0, 0).zeros(128).load().unwrap();
    assert_eq!(file.tensors()[0].offset, file.tensors()[1].offset + 32);
}

#[test]
fn unknown_tensor_types_are_listed_and_refused_on_use() {
    for ty in [4, 5, 33, 36, 43, u32::MAX] {
        let header = Header::new(3, 2, 0).tensor("odd", &[7, 1 << 30], ty, 0).tensor("t", &[4], 0, 32).zeros(96);
        let file = header.load().unwrap();
        let odd = file.tensor("odd").unwrap();
        assert_eq!((odd.type_id, odd.bytes, file.read(odd).unwrap()), (ty, 0, vec![]));
        let error = odd.tensor_type().unwrap_err().to_string();
        assert!(error.contains("`odd`") && error.contains(&ty.to_string()), "{error}");
        assert!(file.tensor("t").unwrap().tensor_type().is_ok());
        // Its end is unknown, but its start is not.
        let header = Header::new(3, 1, 0).tensor("odd", &[7], ty, 1 << 40).zeros(96);
        header.refused(&["tensor `odd`", "ends at byte"]);
    }
}

#[test]
fn small_and_strange_shapes_load() {
    let empty = Header::new(2, 1, 0).tensor("e", &[1 << 40, 1 << 40, 0], 0, 0).zeros(64).load().unwrap();
    assert_eq!(empty.tensors()[0].elements(), 0);
    let header = Header::new(3, 4, 0).tensor("", &[], 0, 0).tensor(&"n".repeat(63), &[0], 0, 32);
    let file = header.tensor("z", &[5, 0, 7], 1, 32).tensor("late", &[0], 0, 1 << 20).zeros(64).load().unwrap();
    assert_eq!(file.tensor("").unwrap().shape, [1, 1, 1, 1]);
    assert_eq!(file.read(file.tensor("late").unwrap()).unwrap(), [0u8; 0]);
}

/// The densest legal headers: as many keys, or tensors, as a megabyte can hold.
#[test]
fn memory_of_dense_headers() {
    let name = |i: u64| i.to_le_bytes().map(|b| b & 0x7f)[..3].to_vec();
    let mut keys = Header::new(3, 0, 60_000);
    let mut tensors = Header::new(3, 30_000, 0);
    for i in 0..60_000u64 {
        let unique = [&name(i & 0x7f)[..1], &name(i >> 7 & 0x7f)[..1], &name(i >> 14)[..1]].concat();
        keys = keys.text(&unique).u32(0).bytes(&[1]);
        if i < 30_000 {
            tensors = tensors.text(&unique).u32(0).u32(99).u64(0);
        }
    }
    assert_eq!(keys.load().unwrap().metadata().count(), 60_000);
    assert_eq!(tensors.zeros(64).load().unwrap().tensors().len(), 30_000);
    let strings =
        (0..100_000).fold(Header::new(3, 0, 1).text(b"k").u32(ARRAY).u32(STRING).u64(100_000), |h, _| h.u64(0));
    assert_eq!(strings.load().unwrap().strings("k").unwrap().unwrap().len(), 100_000);
}

#[test]
fn paths_that_are_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let refused = |path: &std::path::Path, part: &str| {
        let error = File::open(path).err().unwrap().to_string();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    };
    refused(&path, "No such file");
    refused(folder.path(), "directory");
    std::fs::write(&path, b"").unwrap();
    refused(&path, "0 are left");
    std::fs::write(&path, b"not a model").unwrap();
    refused(&path, "magic");
    std::fs::write(&path, sample()).unwrap();
    assert_eq!(File::open(&path).unwrap().tensors().len(), 7);
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|s| s.success()) {
            refused(&pipe, "not a regular file");
        }
        refused(std::path::Path::new("/dev/zero"), "not a regular file");
    }
}

/// Tensors on disk are read whole and in part.
#[test]
fn tensors_are_read_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut w = Writer::new(3);
    for (name, len) in [("small", 100), ("large", 100_000), ("next", 7)] {
        w.tensor(name, &[len], TensorType::I8, (0..len).map(|i| (i * 7) as u8).collect());
    }
    w.write_to(&path).unwrap();
    let file = File::open(&path).unwrap();
    for info in file.tensors() {
        let all: Vec<u8> = (0..info.bytes).map(|i| (i * 7) as u8).collect();
        assert_eq!(file.read(info).unwrap(), all, "{}", info.name);
        let mut part = [0; 5];
        file.read_at(info, 2, &mut part).unwrap();
        assert_eq!(part, all[2..7], "{}", info.name);
        assert!(file.read_at(info, info.bytes - 4, &mut part).is_err(), "{}", info.name);
    }
}
