//! Any bytes as a GGUF file: an error or a file that can be read whole, never a panic.
#![no_main]

use elizainference::gguf::{File, Value};
use elizainference::quant::dequantize;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = File::from_bytes(bytes.to_vec()) else { return };
    for (key, value) in file.metadata() {
        if let Value::Array(array) = value {
            let strings = file.strings(key).is_ok_and(|s| s.is_some_and(|s| s.len() == array.len));
            let numbers = file.floats(key).is_ok_and(|s| s.is_some_and(|s| s.len() == array.len));
            let integers = file.integers(key).is_ok_and(|s| s.is_some_and(|s| s.len() == array.len));
            assert!(strings || numbers || integers, "{key}");
        }
    }
    for info in file.tensors() {
        assert_eq!(file.tensor(&info.name), Some(info));
        let data = file.read(info).unwrap();
        assert_eq!(data.len() as u64, info.bytes);
        if let Ok(ty) = info.tensor_type() {
            // The densest type decodes to some 13 bytes for each byte read.
            let _ = dequantize(ty, &data, &mut vec![0.0; info.elements() as usize]);
        }
    }
});
