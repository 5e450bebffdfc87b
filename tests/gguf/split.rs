//! Models in several files: read as one file, or refused with the path that is at fault.

use crate::hostile::sample;
use crate::testing::split::{path, split, writers};
use elizainference::gguf::{File, Writer};
use elizainference::quant::TensorType;
use std::path::Path;
use tempfile::{TempDir, tempdir};

/// The sample in three files.
fn three() -> (File, TempDir) {
    let (whole, folder) = (File::from_bytes(sample()).unwrap(), tempdir().unwrap());
    split(&whole, folder.path(), 3);
    (whole, folder)
}

/// Opening `opened` fails with an error that begins with the path of part `number` of the three and has all `wanted`.
fn refused(opened: &Path, number: usize, wanted: &[&str]) {
    let error = File::open(opened).err().expect("a broken model was opened").to_string();
    let at_fault = path(opened.parent().unwrap(), number, 3).display().to_string();
    assert!(error.starts_with(&at_fault), "{error}");
    for wanted in wanted {
        assert!(error.contains(wanted), "`{wanted}` is missing in: {error}");
    }
}

#[test]
fn parts_read_as_the_whole() {
    let (whole, folder) = three();
    let file = File::open(path(folder.path(), 1, 3)).unwrap();
    assert_eq!(file.parts().len(), 3);
    assert_eq!(file.size(), file.parts().iter().map(|part| std::fs::metadata(part.path()).unwrap().len()).sum::<u64>());
    assert_eq!(file.tensors().len(), whole.tensors().len());
    for (info, wanted) in file.tensors().iter().zip(whole.tensors()) {
        assert_eq!((&info.name, info.shape, info.type_id), (&wanted.name, wanted.shape, wanted.type_id));
        assert_eq!(file.read(info).unwrap(), whole.read(wanted).unwrap(), "{}", info.name);
        assert_eq!(file.tensor(&info.name), Some(info));
    }
    assert_eq!(file.tensors().iter().map(|info| info.part).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2]);
    for (key, value) in whole.metadata().filter(|(key, _)| !key.ends_with('s')) {
        assert!(file.value(key) == Some(value), "{key}");
    }
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap(), whole.strings("tokenizer.ggml.tokens").unwrap());
    // The header is that of all parts.
    let mut header = Vec::new();
    file.read_header(|piece| header.extend_from_slice(piece)).unwrap();
    for part in file.parts() {
        let bytes = std::fs::read(part.path()).unwrap();
        assert!(header.windows(64).any(|found| found == &bytes[..64]));
    }
    // More files than tensors: some have none.
    let many = split(&whole, folder.path(), 9);
    assert_eq!(File::open(many).unwrap().tensors().len(), 7);
}

#[test]
fn the_first_part_is_the_one_to_open() {
    let (_, folder) = three();
    let first = path(folder.path(), 1, 3).display().to_string();
    for (number, said) in [(2, "part 2 of 3"), (3, "part 3 of 3")] {
        refused(&path(folder.path(), number, 3), number, &[said, "open the first", &first]);
    }
    // Names by which the others cannot be found.
    for name in ["model.gguf", "model-00001-of-00002.gguf", "model-1-of-3.gguf", "model-00002-of-00003.gguf"] {
        let other = tempdir().unwrap();
        let renamed = other.path().join(name);
        std::fs::copy(&first, &renamed).unwrap();
        let error = File::open(&renamed).err().unwrap().to_string();
        assert!(error.starts_with(renamed.to_str().unwrap()) && error.contains("-00001-of-00003.gguf"), "{error}");
    }
    let error = File::from_bytes(std::fs::read(first).unwrap()).err().unwrap().to_string();
    assert!(error.contains("`split.count` is 3"), "{error}");
}

#[test]
fn parts_that_are_missing_or_broken_are_named() {
    let (_, folder) = three();
    let first = path(folder.path(), 1, 3);
    std::fs::remove_file(path(folder.path(), 3, 3)).unwrap();
    refused(&first, 3, &["part 3 of 3"]);
    std::fs::write(path(folder.path(), 3, 3), b"GGUF").unwrap();
    refused(&first, 3, &["version"]);
    // The second in the place of the third.
    std::fs::copy(path(folder.path(), 2, 3), path(folder.path(), 3, 3)).unwrap();
    refused(&first, 3, &["`split.no` is 1", "has 2"]);
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let (whole, folder) = three();
    let first = path(folder.path(), 1, 3);
    let second = path(folder.path(), 2, 3);
    let with = |number: usize, change: fn(&mut Writer) -> &mut Writer| {
        let mut writer = writers(&whole, 3).swap_remove(number - 1);
        change(&mut writer);
        writer.write_to(&path(folder.path(), number, 3)).unwrap();
    };
    let good = |number| with(number, |w| w);

    with(2, |w| w.set("split.count", 2u16));
    refused(&first, 2, &["`split.count` is 2", "has 3"]);
    with(2, |w| w.set("split.tensors.count", 8));
    refused(&first, 2, &["`split.tensors.count` is 8", "has 7"]);
    with(2, |w| w.set("split.no", "one"));
    refused(&first, 2, &["`split.no`"]);
    with(2, |w| w.set("general.name", "another"));
    refused(&first, 2, &["`general.name`", "another model"]);
    with(2, |w| w.set("f32s", vec![0.5f32, 1.25]));
    refused(&first, 2, &["`f32s`", "another model"]);
    with(2, |w| w.set("general.name", "sample").set("f32s", vec![0.5f32, 1.5]).set("general.alignment", 256u32));
    File::open(&first).unwrap();

    // Tensors: one too many, one twice, one that ends beyond its file.
    with(2, |w| w.tensor("more", &[1], TensorType::F32, vec![0; 4]));
    refused(&first, 1, &["`split.tensors.count` is 7", "8 tensors"]);
    with(2, |w| w.tensor("scalar.2", &[1], TensorType::F32, vec![0; 4]));
    with(1, |w| w.set("split.tensors.count", 9));
    with(3, |w| w.set("split.tensors.count", 9).tensor("scalar.2", &[1], TensorType::F32, vec![0; 4]));
    with(2, |w| w.set("split.tensors.count", 9).tensor("scalar.2", &[1], TensorType::F32, vec![0; 4]));
    refused(&first, 3, &["tensor `scalar.2`", "an earlier part"]);
    (1..4).for_each(good);
    let bytes = std::fs::read(&second).unwrap();
    std::fs::write(&second, &bytes[..bytes.len() - 64]).unwrap();
    refused(&first, 2, &["ends at byte"]);

    // The first: keys that it must have, and what it says of itself.
    good(2);
    for key in ["split.no", "split.tensors.count"] {
        let mut bytes = std::fs::read(&first).unwrap();
        let at = bytes.windows(key.len()).position(|found| found == key.as_bytes()).unwrap();
        bytes[at] = b'S';
        std::fs::write(&first, bytes).unwrap();
        refused(&first, 1, &[key, "missing"]);
        good(1);
    }
    with(1, |w| w.set("split.count", 60_000u16));
    refused(&first, 1, &["60000"]);
    File::open({
        good(1);
        &first
    })
    .unwrap();
}

/// A part that changes after it was opened is an error, as with one file.
#[test]
fn a_part_that_changes_is_noticed() {
    let (_, folder) = three();
    let file = File::open(path(folder.path(), 1, 3)).unwrap();
    let second = path(folder.path(), 2, 3);
    let bytes = std::fs::read(&second).unwrap();
    std::fs::write(&second, &bytes[..bytes.len() - 1]).unwrap();
    let of = |part| file.tensors().iter().find(|info| info.part == part).unwrap();
    let error = file.read(of(1)).unwrap_err().to_string();
    assert!(error.starts_with(second.to_str().unwrap()) && error.contains("changed"), "{error}");
    file.read(of(0)).unwrap();
}
