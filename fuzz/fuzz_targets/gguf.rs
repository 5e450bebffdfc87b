//! A GGUF file made of any bytes: an error or a correct load, and everything the reader then offers can be read.
#![no_main]

use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = File::from_bytes(data.to_vec()) else { return };
    let keys: Vec<String> = file.metadata().map(|(key, _)| key.to_string()).collect();
    for key in keys {
        let _ = (file.get::<u32>(&key), file.get::<String>(&key), file.get::<f32>(&key), file.get::<bool>(&key));
        let _ = (file.strings(&key), file.floats(&key), file.integers(&key));
    }
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len() as u64, tensor.bytes);
    }
    if let Ok(vocab) = Vocab::from_gguf(&file) {
        let ids = vocab.tokenize(b"Once upon a time", true, true);
        vocab.detokenize(&ids, false, true);
    }
});
