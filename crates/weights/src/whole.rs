//! Reads whole files: only regular files, up to a size limit that the caller gives.
//!
//! A model's folder, a cache or a command line may name anything: a pipe that nobody writes to, a device that never
//! ends, a file larger than memory. The caller gives a maximum number of bytes, which is many times that of real files
//! of its kind, and everything else is refused before it is read. Only a path that a user gives for a text may be a
//! pipe ([`read_stream`]); then the reader waits for its writer. Weights are not read by this module: they are mapped
//! ([`Bytes`](crate::Bytes)).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Maximum bytes of a settings file (`config.json`, `generation_config.json`, a file of defaults); real ones have a few
/// thousand.
pub const SETTINGS_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of a vocabulary file or its configuration; the largest published ones have 35 MB.
pub const VOCABULARY_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of a chat template; the longest published ones have 30 kB.
pub const TEMPLATE_BYTES_MAX: u64 = 4 << 20;
/// Maximum bytes of a text that a user names (prompts, records, conversations, keys): enough for the longest context,
/// and few enough to fit into memory several times.
pub const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Reads a regular file of at most `bytes_max` bytes. Other kinds of files are not opened.
///
/// # Errors
/// Errors of the system, or that the file is not regular or is longer.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, len) = open_checked(path, |metadata| check(metadata, bytes_max))?;
    read_up_to(file, len, bytes_max)
}

/// Opens a file that passes `check`, and returns it with its length. The check runs before opening, since opening a
/// named pipe would wait for its writer, and again on the opened file, which may be another one by then.
///
/// # Errors
/// Errors of the system, or of the check.
pub fn open_checked(path: &Path, check: impl Fn(&Metadata) -> io::Result<()>) -> io::Result<(File, u64)> {
    check(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a regular file of at most `bytes_max` bytes as text.
///
/// # Errors
/// As [`read`], or that the file is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read(path, bytes_max)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("expected UTF-8, found another byte at {at}"))
    })
}

/// Reads a file, a pipe or a device to its end, at most `bytes_max` bytes. It waits for the writer of a pipe.
///
/// # Errors
/// The system's; or there is more.
pub fn read_stream(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        check(&metadata, bytes_max)?;
    }
    read_up_to(file, metadata.len(), bytes_max)
}

/// Reads `from` to its end, at most `bytes_max` bytes.
///
/// # Errors
/// The system's; or there is more.
pub fn read_all(from: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_up_to(from, 0, bytes_max)
}

fn read_up_to(from: impl Read, len: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than the file has, so that its end is seen without growing the buffer.
    bytes.try_reserve_exact(usize::try_from(len.min(bytes_max)).unwrap_or(0) + 1).map_err(io::Error::other)?;
    from.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("expected at most {bytes_max} bytes, found more"))),
        false => Ok(bytes),
    }
}

/// Requires a regular file, which is what every `check` of [`open_checked`] has to require.
///
/// # Errors
/// The file is of another kind, which the message names.
pub fn regular(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other(format!("expected a regular file, found {}", kind(metadata)))),
    }
}

fn check(metadata: &Metadata, bytes_max: u64) -> io::Result<()> {
    regular(metadata)?;
    match metadata.len() {
        found if found > bytes_max => {
            Err(io::Error::other(format!("expected at most {bytes_max} bytes, found {found}")))
        }
        _ => Ok(()),
    }
}

/// Names the kind of a file that is not regular.
pub(crate) fn kind(metadata: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if metadata.is_dir() { "a folder" } else { "something else" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_anything_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(read(&path, 8).unwrap(), b"12345678");
        assert_eq!(read_stream(&path, 8).unwrap(), b"12345678");
        for found in [read(&path, 7), read_stream(&path, 7)] {
            assert_eq!(found.unwrap_err().to_string(), "expected at most 7 bytes, found 8");
        }
        assert_eq!(read_all(&b"12345678"[..], 8).unwrap(), b"12345678");
        assert!(read_all(&b"12345678"[..], 7).unwrap_err().to_string().ends_with("found more"));
        let found = read(folder.path(), 9).unwrap_err().to_string();
        assert_eq!(found, "expected a regular file, found a folder");
        assert_eq!(read(&folder.path().join("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(read_text(&path, 9).unwrap_err().to_string(), "expected UTF-8, found another byte at 2");
    }

    #[cfg(unix)]
    #[test]
    fn endless_files_are_refused() {
        let found = read(Path::new("/dev/zero"), 1 << 40).unwrap_err().to_string();
        assert_eq!(found, "expected a regular file, found a device");
        let found = read_stream(Path::new("/dev/zero"), 1 << 16).unwrap_err().to_string();
        assert_eq!(found, "expected at most 65536 bytes, found more");
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let found = read(&pipe, 1 << 16).unwrap_err().to_string();
        assert_eq!(found, "expected a regular file, found a pipe");
    }
}
