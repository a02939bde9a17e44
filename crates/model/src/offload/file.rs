//! The file of packed layers: made once for a network and a type of weights, and read for every pass.
//!
//! All numbers are little-endian:
//!
//! ```text
//! 0        8   the letters "ftkpanel"
//! 8        4   version: 1
//! 4096         the layers, each the panels of its matrices one after another, from a multiple of 4096 on
//! index    4   bytes of the identity
//!              the identity, UTF-8: what the layers depend on
//!          4   number of layers
//!              for each layer: where it begins (8), its bytes with padding (8), XXH3-64 of them (8)
//! end - 16 8   where the index begins
//! end - 8  8   XXH3-64 of the index and of where it begins
//! ```
//!
//! The index is at the end, since checksums are known when the layers are written. A layer is compared with its
//! checksum when it is first read; a disk that later gives other bytes without an error is not noticed. The system's
//! cache of files is bypassed where possible (`O_DIRECT`): it would keep the layers that were read last, which are the
//! last to be needed again, and take the memory of what stays.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use foretoken_kernels::panel::Buffer;
use foretoken_weights::whole::{open_checked, regular};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::ModelError;

/// Layers begin and end at multiples of this, as direct reads require.
pub(super) const PAGE_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"ftkpanel";
/// The version of the format, of the order of a layer's matrices and of the bytes of panels.
const VERSION: u32 = 1;
/// Bytes that are asked of the disk at a time: fewer leave it idle between two requests.
const CHUNK_BYTES: usize = 8 << 20;
/// The most bytes of an index; a thousand layers take 24 kB.
const INDEX_BYTES_MAX: u64 = 1 << 20;
/// Bytes at the end of the file: where the index begins, and its checksum.
const END_BYTES: u64 = 16;

/// A layer of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedLayer {
    /// Where it begins.
    start: u64,
    /// Its bytes, with padding to whole pages.
    pub(super) bytes: usize,
    checksum: u64,
}

/// A file of packed layers that was opened.
#[derive(Debug)]
pub struct PackedFile {
    name: String,
    file: File,
    layers: Vec<PackedLayer>,
    /// Whether reads bypass the system's cache of files.
    is_direct: bool,
}

impl PackedFile {
    /// Opens a file that was written with this identity.
    ///
    /// # Errors
    /// The system refuses it; or it is no such file, is damaged, or has another version or identity.
    pub fn open(path: &Path, identity: &str) -> Result<Self, ModelError> {
        let name = path.display().to_string();
        let unread = |error: io::Error| ModelError::Io { file: name.clone(), message: error.to_string() };
        let (mut file, len) = open_checked(path, regular).map_err(unread)?;
        let index = Index::read(&mut file, len, &name)?;
        if index.identity != identity {
            return Err(ModelError::config(&name, "identity", identity, index.identity));
        }
        let is_direct = set_direct(&file);
        Ok(Self { name, file, layers: index.layers, is_direct })
    }

    /// Its path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether reads bypass the system's cache of files.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub(super) fn layers(&self) -> &[PackedLayer] {
        &self.layers
    }

    /// Checks that it has this number of layers.
    pub(super) fn check_count(&self, expected: usize) -> Result<(), ModelError> {
        let found = self.layers.len();
        if found == expected { Ok(()) } else { Err(ModelError::config(&self.name, "layers", expected, found)) }
    }

    /// Checks that a layer has this number of bytes, without padding.
    pub(super) fn check_layer(&self, number: usize, bytes: usize) -> Result<(), ModelError> {
        let (expected, found) = (bytes.next_multiple_of(PAGE_BYTES), self.layers[number].bytes);
        let field = || format!("layer {number}");
        let of = |bytes: usize| format!("{bytes} bytes");
        if found == expected { Ok(()) } else { Err(ModelError::config(&self.name, field(), of(expected), of(found))) }
    }

    /// Reads a layer into the beginning of a buffer, and compares it with its checksum if it is to be `checked`. Only
    /// one thread may read at a time.
    ///
    /// # Errors
    /// The system's, or the checksum differs.
    pub(super) fn read_layer(&self, number: usize, buffer: &mut Buffer, checked: bool) -> Result<(), ModelError> {
        let PackedLayer { start, bytes, checksum } = self.layers[number];
        let buffer = &mut buffer[..bytes];
        self.read(start, buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let found = "fewer: the file was shortened while it was used";
                ModelError::config(&self.name, format!("layer {number}"), format!("{bytes} bytes"), found)
            }
            _ => ModelError::Io { file: self.name.clone(), message: format!("layer {number}: {error}") },
        })?;
        if checked && xxh3_64(buffer) != checksum {
            let (expected, found) = (format!("{checksum:016x}"), format!("{:016x} of what was read", xxh3_64(buffer)));
            return Err(ModelError::config(&self.name, format!("checksum of layer {number}"), expected, found));
        }
        Ok(())
    }

    /// The line of a pass that failed with this error. A damaged file is removed, since it would fail all later runs as
    /// well: without it the next one makes it anew.
    pub(super) fn failure(&self, error: &ModelError) -> String {
        let ModelError::Config { .. } = error else { return error.to_string() };
        match !self.is_still_named() || std::fs::remove_file(&self.name).is_ok() {
            true => format!("{error}; it is removed, and made anew when the model is opened again"),
            false => format!("{error}; delete it, and it is made anew when the model is opened again"),
        }
    }

    /// Whether its path still leads to it: an earlier pass or another process may have removed it, and another one made
    /// it anew.
    fn is_still_named(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
            let (named, own) = (std::fs::metadata(&self.name).map(number), self.file.metadata().map(number));
            named.is_ok_and(|named| own.is_ok_and(|own| named == own))
        }
        #[cfg(not(unix))]
        Path::new(&self.name).exists()
    }

    fn read(&self, start: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(start))?;
        buffer.chunks_mut(CHUNK_BYTES).try_for_each(|chunk| file.read_exact(chunk))?;
        if !self.is_direct {
            drop_from_cache(file, start, buffer.len());
        }
        Ok(())
    }
}

/// A buffer for a layer of a file.
///
/// # Errors
/// The system has no memory for it.
pub(super) fn buffer(file: &PackedFile, bytes: usize) -> Result<Buffer, ModelError> {
    let no_memory = || ModelError::LayersMemory { place: file.name.clone(), bytes };
    Buffer::zeroed(bytes).ok_or_else(no_memory)
}

/// Lets reads of a file bypass the system's cache, if it can: some file systems take the flag and then refuse to read.
fn set_direct(file: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let Ok(flags) = fcntl_getfl(file) else { return false };
        let Some(mut page) = Buffer::zeroed(PAGE_BYTES) else { return false };
        let mut reader = file;
        let is_direct = fcntl_setfl(file, flags | OFlags::DIRECT).is_ok()
            && reader.seek(SeekFrom::Start(0)).and_then(|_| reader.read_exact(&mut page)).is_ok();
        is_direct || fcntl_setfl(file, flags).is_err()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}

/// Tells the system that a range of a file will not be read again soon.
fn drop_from_cache(file: &File, start: u64, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Advice, fadvise};
        // This is advice, which changes only the speed.
        let _ = fadvise(file, start, std::num::NonZeroU64::new(bytes as u64), Advice::DontNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, bytes);
}

/// The index of a file.
struct Index {
    identity: String,
    layers: Vec<PackedLayer>,
}

impl Index {
    fn read(file: &mut File, len: u64, name: &str) -> Result<Self, ModelError> {
        let unread = |error: io::Error| ModelError::Io { file: name.to_string(), message: error.to_string() };
        let wrong = |field: &str, expected: &str, found: String| ModelError::config(name, field, expected, found);
        if len < PAGE_BYTES as u64 + END_BYTES {
            return Err(wrong("length", "a file of packed layers", format!("{len} bytes")));
        }
        let mut head = [0; 12];
        file.read_exact(&mut head).map_err(unread)?;
        if head[..8] != MAGIC {
            return Err(wrong("magic", "ftkpanel", head[..8].escape_ascii().to_string()));
        }
        let version = u32::from_le_bytes(head[8..].try_into().expect("four bytes"));
        if version != VERSION {
            return Err(wrong("version", &VERSION.to_string(), version.to_string()));
        }
        let mut end = [0; END_BYTES as usize];
        file.seek(SeekFrom::Start(len - END_BYTES)).and_then(|_| file.read_exact(&mut end)).map_err(unread)?;
        let [start, checksum] = [0, 8].map(|at| u64::from_le_bytes(end[at..at + 8].try_into().expect("eight bytes")));
        let bytes = (len - END_BYTES).checked_sub(start).filter(|bytes| (8..=INDEX_BYTES_MAX).contains(bytes));
        let bytes = bytes.ok_or_else(|| wrong("index", "one before the end of the file", format!("it at {start}")))?;
        let mut index = vec![0; bytes as usize];
        file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut index)).map_err(unread)?;
        let mut hash = Xxh3::new();
        hash.update(&index);
        hash.update(&end[..8]);
        if hash.digest() != checksum {
            let found = format!("{:016x} of what was read", hash.digest());
            return Err(wrong("checksum of the index", &format!("{checksum:016x}"), found));
        }
        Self::parse(&index, start).ok_or_else(|| wrong("index", "layers inside the file", "others".to_string()))
    }

    /// Parses an index that begins at `start` of its file, which all layers lie before.
    fn parse(index: &[u8], start: u64) -> Option<Self> {
        let (len, rest) = index.split_first_chunk()?;
        let (identity, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let (count, rest) = rest.split_first_chunk()?;
        let layers = rest.as_chunks::<24>();
        if layers.0.len() != u32::from_le_bytes(*count) as usize || !layers.1.is_empty() {
            return None;
        }
        let layer = |numbers: &[u8; 24]| {
            let [at, bytes, checksum] =
                [0, 8, 16].map(|from| u64::from_le_bytes(numbers[from..from + 8].try_into().expect("eight bytes")));
            let page = PAGE_BYTES as u64;
            let is_inside = at >= page && bytes > 0 && at.checked_add(bytes).is_some_and(|end| end <= start);
            let is_aligned = at.is_multiple_of(page) && bytes.is_multiple_of(page);
            (is_inside && is_aligned).then_some(PackedLayer {
                start: at,
                bytes: usize::try_from(bytes).ok()?,
                checksum,
            })
        };
        let layers = layers.0.iter().map(layer).collect::<Option<_>>()?;
        Some(Self { identity: String::from_utf8(identity.to_vec()).ok()?, layers })
    }
}

/// Writes a file of packed layers, in order.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    /// Bytes that were written.
    len: u64,
    /// The checksum of the layer that is being written.
    hash: Xxh3,
    /// Where the layer that is being written begins.
    start: u64,
    layers: Vec<PackedLayer>,
}

impl<'a> Writer<'a> {
    pub(super) fn begin(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&page)?;
        let len = PAGE_BYTES as u64;
        Ok(Self { out, len, hash: Xxh3::new(), start: len, layers: Vec::new() })
    }

    /// Writes bytes of the current layer.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Ends the current layer, and begins the next.
    pub(super) fn end_layer(&mut self) -> io::Result<()> {
        let padding = self.len.next_multiple_of(PAGE_BYTES as u64) - self.len;
        self.bytes(&[0; PAGE_BYTES][..padding as usize])?;
        let (start, bytes) = (self.start, (self.len - self.start) as usize);
        self.layers.push(PackedLayer { start, bytes, checksum: self.hash.digest() });
        (self.start, self.hash) = (self.len, Xxh3::new());
        Ok(())
    }

    /// Writes the index.
    pub(super) fn finish(self, identity: &str) -> io::Result<()> {
        let mut index = Vec::new();
        index.extend((identity.len() as u32).to_le_bytes());
        index.extend(identity.as_bytes());
        index.extend((self.layers.len() as u32).to_le_bytes());
        for PackedLayer { start, bytes, checksum } in &self.layers {
            index.extend([*start, *bytes as u64, *checksum].iter().flat_map(|number| number.to_le_bytes()));
        }
        index.extend(self.len.to_le_bytes());
        let checksum = xxh3_64(&index);
        index.extend(checksum.to_le_bytes());
        self.out.write_all(&index)
    }
}
