//! Model files that hold metadata only, written byte by byte for tests.

use elizainference::gguf::File;

/// Metadata in the making.
#[derive(Default, Clone)]
pub struct Keys {
    count: u64,
    bytes: Vec<u8>,
}

impl Keys {
    fn key(mut self, name: &str, kind: u32) -> Self {
        self.count += 1;
        self.text(name);
        self.bytes.extend(kind.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    /// A string.
    pub fn string(self, name: &str, value: &str) -> Self {
        let mut this = self.key(name, 8);
        this.text(value);
        this
    }

    /// A u32.
    pub fn u32(self, name: &str, value: u32) -> Self {
        let mut this = self.key(name, 4);
        this.bytes.extend(value.to_le_bytes());
        this
    }

    /// A bool.
    #[allow(dead_code)]
    pub fn bool(self, name: &str, value: bool) -> Self {
        let mut this = self.key(name, 7);
        this.bytes.push(value.into());
        this
    }

    fn array(self, name: &str, kind: u32, len: usize) -> Self {
        let mut this = self.key(name, 9);
        this.bytes.extend(kind.to_le_bytes());
        this.bytes.extend((len as u64).to_le_bytes());
        this
    }

    /// An array of strings.
    pub fn strings<S: AsRef<str>>(self, name: &str, values: &[S]) -> Self {
        let mut this = self.array(name, 8, values.len());
        values.iter().for_each(|v| this.text(v.as_ref()));
        this
    }

    /// An array of i32.
    pub fn integers(self, name: &str, values: &[i32]) -> Self {
        let mut this = self.array(name, 5, values.len());
        values.iter().for_each(|v| this.bytes.extend(v.to_le_bytes()));
        this
    }

    /// An array of u8.
    #[allow(dead_code)]
    pub fn bytes_array(self, name: &str, values: &[u8]) -> Self {
        let mut this = self.array(name, 0, values.len());
        this.bytes.extend(values);
        this
    }

    /// An array of f32.
    pub fn floats(self, name: &str, values: &[f32]) -> Self {
        let mut this = self.array(name, 6, values.len());
        values.iter().for_each(|v| this.bytes.extend(v.to_le_bytes()));
        this
    }

    /// The file.
    pub fn file(&self) -> File {
        File::from_bytes(self.bytes()).unwrap()
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(&self.bytes);
        file
    }
}
