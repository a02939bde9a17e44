//! A GGUF writer for tests: correct by default, and every field can be set to a false value.

/// The numbers of the value types that tests use.
pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// A tensor to write: dimensions innermost first, type by ggml's number.
pub struct TensorEntry {
    pub name: Vec<u8>,
    pub dimensions: Vec<u64>,
    pub kind: u32,
    /// The offset that the file gives; [`GgufWriter::tensor`] sets it to the true one.
    pub offset: u64,
    pub data: Vec<u8>,
}

/// A GGUF file that is being built.
pub struct GgufWriter {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: u64,
    /// Key, type number, bytes of the value.
    pub entries: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub tensors: Vec<TensorEntry>,
    /// The counts to write instead of the true ones.
    pub entry_count: Option<u64>,
    pub tensor_count: Option<u64>,
}

/// A length and the bytes.
pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// The value of an array: element type, length, elements as they are.
pub fn array(kind: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

impl GgufWriter {
    pub fn new() -> GgufWriter {
        GgufWriter {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
            entry_count: None,
            tensor_count: None,
        }
    }

    /// Adds an entry from its raw bytes.
    pub fn raw(mut self, key: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> GgufWriter {
        self.entries.push((key.as_ref().to_vec(), kind, value.to_vec()));
        self
    }

    pub fn u32(self, key: &str, value: u32) -> GgufWriter {
        self.raw(key, U32, &value.to_le_bytes())
    }

    pub fn str(self, key: &str, value: &str) -> GgufWriter {
        self.raw(key, STRING, &string(value))
    }

    pub fn strings(self, key: &str, values: &[&str]) -> GgufWriter {
        let elements: Vec<u8> = values.iter().flat_map(string).collect();
        self.raw(key, ARRAY, &array(STRING, values.len() as u64, &elements))
    }

    /// Sets `general.alignment`, and aligns tensors to it.
    pub fn alignment(mut self, alignment: u32) -> GgufWriter {
        self.alignment = u64::from(alignment);
        self.u32("general.alignment", alignment)
    }

    /// Adds a tensor after the ones before it, at the next aligned offset.
    pub fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32, data: &[u8]) -> GgufWriter {
        let end = self.tensors.last().map_or(0, |last| last.offset + last.data.len() as u64);
        self.tensors.push(TensorEntry {
            name: name.as_bytes().to_vec(),
            dimensions: dimensions.to_vec(),
            kind,
            offset: end.next_multiple_of(self.alignment),
            data: data.to_vec(),
        });
        self
    }

    /// Changes the tensor added last.
    pub fn change_last(mut self, change: impl FnOnce(&mut TensorEntry)) -> GgufWriter {
        change(self.tensors.last_mut().expect("a tensor to change"));
        self
    }

    /// The file. Data lies one after another, aligned, whatever the offsets say.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.entry_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.entries {
            file.extend(string(key));
            file.extend(kind.to_le_bytes());
            file.extend(value);
        }
        for tensor in &self.tensors {
            file.extend(string(&tensor.name));
            file.extend((tensor.dimensions.len() as u32).to_le_bytes());
            file.extend(tensor.dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend(tensor.offset.to_le_bytes());
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment as usize), 0);
            file.extend(&tensor.data);
        }
        file
    }
}
