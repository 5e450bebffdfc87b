//! A model in several files, as llama.cpp's `gguf-split` writes it.

use elizainference::gguf::{File, Writer};
use std::path::{Path, PathBuf};

/// The path of a part, counted from 1.
pub fn path(folder: &Path, number: usize, count: usize) -> PathBuf {
    folder.join(format!("model-{number:05}-of-{count:05}.gguf"))
}

/// What each of `count` files is made of; the first has the keys, and no tensors if there are more files than tensors.
pub fn writers(file: &File, count: usize) -> Vec<Writer> {
    let each = file.tensors().len().div_ceil(count);
    let parts = (0..count).map(|part| {
        let mut writer = Writer::new(3);
        if part == 0 {
            for (key, _) in file.metadata() {
                writer.copy_key(file, key).unwrap();
            }
        }
        writer.set("split.no", part as u16).set("split.count", count as u16);
        writer.set("split.tensors.count", file.tensors().len() as i32);
        for info in file.tensors().iter().skip(part * each).take(each) {
            let shape = &info.shape[..info.n_dims as usize];
            writer.tensor(info.name.clone(), shape, info.tensor_type().unwrap(), file.read(info).unwrap());
        }
        writer
    });
    parts.collect()
}

/// Writes a file as several to a folder; the path of the first.
pub fn split(file: &File, folder: &Path, count: usize) -> PathBuf {
    for (number, writer) in (1..).zip(writers(file, count)) {
        writer.write_to(&path(folder, number, count)).unwrap();
    }
    path(folder, 1, count)
}
