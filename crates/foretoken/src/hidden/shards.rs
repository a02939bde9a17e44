//! Files of hidden states: safetensors with the tokens of some texts and the rows of every token, and folders of them.
//!
//! A file has `tokens` (I32, all texts concatenated), `starts` (I64, the index of each text's first token, and the end
//! of the last text), `prompt_lens` (I32, tokens before the model's own output) and `hidden` (`[tokens, layers *
//! width]`, the layers concatenated in the order of `layers`). Its metadata has everything that the rows depend on, and
//! the range of texts: `first..end`. Files of a folder are *shards*, numbered from 00000, each written atomically. A
//! run that finds shards checks that they are of the same model, settings and texts and continues after them. A stream
//! has such a file for each text, preceded by its length in 8 bytes. The training scripts read these files
//! (`training/shards.py`).

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use foretoken_weights::WeightsError;
use foretoken_weights::safetensors::{self, Elements};

use super::{Extractor, RowType, Text};
use crate::Error;
use crate::error::KeptFileError;
use crate::kept_file;
use crate::output_file::{Existing, OutputFile};

/// The value of `format` in the metadata, with the format's version.
pub const FORMAT: &str = "foretoken-hidden/1";

/// The field of the metadata with the range of texts, the only one that differs between shards.
const TEXTS: &str = "texts";

/// The most bytes of a file's header without its metadata: four tensors with their shapes and offsets.
const HEADER_BYTES: u64 = 1024;

/// The tensors of a file that describe its texts.
struct TextTensors {
    tokens: Vec<i32>,
    starts: Vec<i64>,
    prompt_lens: Vec<i32>,
}

impl TextTensors {
    fn of(texts: &[Text]) -> Self {
        let mut starts = vec![0];
        starts.extend(texts.iter().scan(0, |end, text| {
            *end += text.tokens.len() as i64;
            Some(*end)
        }));
        let tokens = texts.iter().flat_map(|text| &text.tokens).map(|token| *token as i32).collect();
        Self { tokens, starts, prompt_lens: texts.iter().map(|text| text.prompt_len as i32).collect() }
    }
}

/// The properties that all files of a run share.
struct FileFormat {
    metadata: Vec<(&'static str, String)>,
    row_len: usize,
    row_type: RowType,
}

impl FileFormat {
    fn of(extractor: &Extractor) -> Self {
        Self { metadata: extractor.metadata(), row_len: extractor.row_len(), row_type: extractor.row_type }
    }

    /// Writes a file of these texts.
    fn write(
        &self,
        out: &mut impl Write,
        name: &str,
        texts: &[Text],
        range: Range<usize>,
        rows: &[u8],
    ) -> Result<(), WeightsError> {
        let TextTensors { tokens, starts, prompt_lens } = TextTensors::of(&texts[range.clone()]);
        let mut metadata: HashMap<String, String> =
            self.metadata.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        metadata.insert(TEXTS.to_string(), format!("{}..{}", range.start, range.end));
        let tensors: [(&str, &[usize], Elements<'_>); 4] = [
            ("tokens", &[tokens.len()], Elements::I32(&tokens)),
            ("starts", &[starts.len()], Elements::I64(&starts)),
            ("prompt_lens", &[prompt_lens.len()], Elements::I32(&prompt_lens)),
            ("hidden", &[tokens.len(), self.row_len], Elements::Bytes(self.row_type.dtype(), rows)),
        ];
        safetensors::write_with(out, name, &tensors, Some(metadata))
    }

    /// The most bytes of a file with these numbers of texts and tokens.
    fn bytes(&self, texts: usize, tokens: usize) -> u64 {
        // Escaped characters of JSON take two bytes. Control characters take more, but should not be in a path.
        let metadata: usize = self.metadata.iter().map(|(name, value)| 2 * (name.len() + value.len())).sum();
        let row = 4 + self.row_len * self.row_type.bytes();
        HEADER_BYTES + metadata as u64 + 8 + 12 * texts as u64 + row as u64 * tokens as u64
    }
}

/// Limits of a folder's size.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a shard, at most, unless a single text has more.
    pub shard: u64,
    /// Bytes of all shards, at most.
    pub all: u64,
}

/// The contents of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of shards.
    pub shards: usize,
    /// Bytes of the shards.
    pub bytes: u64,
    /// Texts in them.
    pub texts: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Whether the next text would exceed [`Sizes::all`].
    pub is_full: bool,
}

/// A folder of shards.
pub struct Folder {
    path: PathBuf,
    format: FileFormat,
    written: Written,
}

impl Folder {
    /// Opens a folder, which is created if it does not exist, and checks the shards of an earlier run.
    ///
    /// # Errors
    /// It cannot be created or read; or a shard is of another model, other settings or other texts.
    pub fn open(path: &Path, extractor: &Extractor, texts: &[Text]) -> Result<Self, Error> {
        if !kept_file::exists(path)? {
            std::fs::create_dir(path).map_err(|error| KeptFileError::io(path, "written", &error))?;
        }
        let (path, format) = (path.to_owned(), FileFormat::of(extractor));
        let mut folder = Self { path, format, written: Written::default() };
        let mut names = folder.names()?;
        names.sort();
        for name in names {
            let expected = folder.next_shard();
            if Some(name.as_str()) != expected.file_name().and_then(|expected| expected.to_str()) {
                let (place, next) = (folder.path.display(), folder.written.shards);
                let expected = format!("shards that are numbered from 00000 without a gap, the next {next:05}");
                return Err(Error::input(format!("{place}: expected {expected}, found {name}")));
            }
            folder.check_shard(&expected, texts)?;
        }
        Ok(folder)
    }

    /// Names of the files with the ending of shards.
    fn names(&self) -> Result<Vec<String>, Error> {
        let unreadable = |error: io::Error| Error::unreadable(&self.path, &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
            // Temporary files have another ending.
            if name.ends_with(".safetensors") {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The path of the next shard.
    fn next_shard(&self) -> PathBuf {
        self.path.join(format!("{:05}.safetensors", self.written.shards))
    }

    /// Checks that an existing shard equals what this run would write, except for its rows, and counts it.
    fn check_shard(&mut self, path: &Path, texts: &[Text]) -> Result<(), Error> {
        let shard = safetensors::open(path)?;
        let wrong = |field: &str, expected: String, found: String| {
            let (file, field) = (path.display().to_string(), field.to_string());
            Error::from(KeptFileError::Field { file, field, expected, found })
        };
        for (name, value) in &self.format.metadata {
            let found = shard.metadata(name).unwrap_or("none");
            if found != value {
                return Err(wrong(name, format!("{value}, as this run has it"), found.to_string()));
            }
        }
        let first = self.written.texts;
        let found = shard.metadata(TEXTS).unwrap_or("none");
        let end = found.split_once("..").filter(|(start, _)| *start == first.to_string());
        let end = end.and_then(|(_, end)| end.parse().ok()).filter(|end| (first + 1..=texts.len()).contains(end));
        let Some(end) = end else {
            let expected = format!("some of {first}..{}, which are not in the shards before", texts.len());
            return Err(wrong(TEXTS, expected, found.to_string()));
        };
        let TextTensors { tokens, starts, prompt_lens } = TextTensors::of(&texts[first..end]);
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let starts = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        let tensors = [("tokens", bytes(&tokens)), ("prompt_lens", bytes(&prompt_lens)), ("starts", starts)];
        for (name, expected) in tensors {
            if shard.get(name).is_none_or(|found| found.bytes[..] != expected[..]) {
                let expected = format!("those of texts {first}..{end} of this run");
                return Err(wrong(name, expected, "others".to_string()));
            }
        }
        let (dtype, shape) = (self.format.row_type.dtype(), [tokens.len(), self.format.row_len]);
        if shard.get("hidden").is_none_or(|found| (found.dtype, &found.shape[..]) != (dtype, &shape[..])) {
            return Err(wrong("hidden", format!("{dtype} {shape:?}"), "another tensor or none".to_string()));
        }
        let len = std::fs::metadata(path).map_err(|error| Error::unreadable(path, &error))?.len();
        self.count(end, tokens.len(), len);
        Ok(())
    }

    /// Counts a shard whose texts end at `end`.
    fn count(&mut self, end: usize, tokens: usize, bytes: u64) {
        self.written.shards += 1;
        self.written.bytes += bytes;
        self.written.texts = end;
        self.written.tokens += tokens;
    }

    /// The contents of the folder.
    pub fn written(&self) -> Written {
        self.written
    }

    /// The texts of each further shard within the limits, and whether all texts fit.
    fn plan(&self, texts: &[Text], sizes: Sizes) -> (Vec<Range<usize>>, bool) {
        let mut shards: Vec<Range<usize>> = Vec::new();
        // Bytes of the shards before the last one, and bytes and tokens of the last one.
        let (mut before, mut bytes, mut tokens) = (self.written.bytes, 0, 0);
        for number in self.written.texts..texts.len() {
            let len = texts[number].tokens.len();
            let begun = shards.last().map_or(0, |shard| number - shard.start);
            let longer = self.format.bytes(begun + 1, tokens + len);
            let fits = begun > 0 && longer <= sizes.shard;
            (before, bytes, tokens) = match fits {
                true => (before, longer, tokens + len),
                false => (before + bytes, self.format.bytes(1, len), len),
            };
            if before + bytes > sizes.all {
                return (shards, false);
            }
            match shards.last_mut().filter(|_| fits) {
                Some(shard) => shard.end = number + 1,
                None => shards.push(number..number + 1),
            }
        }
        (shards, true)
    }

    /// Tokens of the texts that a run will add.
    pub fn tokens_missing(&self, texts: &[Text], sizes: Sizes) -> usize {
        let planned = self.plan(texts, sizes).0.into_iter().flat_map(|shard| &texts[shard]);
        planned.map(|text| text.tokens.len()).sum()
    }

    /// Adds shards of the texts that are missing. `keep_going` is called after each pass with its rows and returns
    /// whether to continue; if not, what was computed is kept.
    ///
    /// # Errors
    /// The network fails, or a shard cannot be written.
    pub fn fill(
        &mut self,
        extractor: &mut Extractor,
        texts: &[Text],
        sizes: Sizes,
        keep_going: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Written, Error> {
        let (shards, fits) = self.plan(texts, sizes);
        let (Some(first), Some(last)) = (shards.first(), shards.last()) else {
            self.written.is_full = !fits;
            return Ok(self.written);
        };
        let (all, mut rows, mut ends) = (first.start..last.end, Vec::new(), shards.iter().map(|shard| shard.end));
        let (mut end, mut next) = (ends.next(), first.start);
        // The file is created before the work, so that an error in writing comes at once.
        let mut file = Some(self.begin()?);
        extractor.run(texts, all, keep_going, &mut |number, of_text: Vec<u8>| -> Result<(), Error> {
            rows.extend(of_text);
            next = number + 1;
            if Some(next) == end {
                end = ends.next();
                file.take().map_or(Ok(()), |file| self.add(file, texts, next, &rows))?;
                rows.clear();
                file = end.map(|_| self.begin()).transpose()?;
            }
            Ok(())
        })?;
        if let Some(file) = file.filter(|_| !rows.is_empty()) {
            self.add(file, texts, next, &rows)?;
        }
        self.written.is_full = !fits && end.is_none();
        Ok(self.written)
    }

    /// Begins the next shard.
    fn begin(&self) -> Result<OutputFile, Error> {
        OutputFile::create(&self.next_shard(), Existing::Kept, &[])
    }

    /// Writes the next shard, whose texts end at `end`.
    fn add(&mut self, mut file: OutputFile, texts: &[Text], end: usize, rows: &[u8]) -> Result<(), Error> {
        let (path, range) = (self.next_shard(), self.written.texts..end);
        self.format.write(&mut file, &path.display().to_string(), texts, range.clone(), rows)?;
        file.finish()?;
        let len = std::fs::metadata(&path).map_err(|error| Error::unreadable(&path, &error))?.len();
        self.count(end, texts[range].iter().map(|text| text.tokens.len()).sum(), len);
        Ok(())
    }
}

/// Writes a file for each text, preceded by its length in 8 bytes, little-endian. `keep_going` as in [`Folder::fill`].
///
/// # Errors
/// The network fails, or `out` cannot be written.
pub fn stream<E: From<Error> + From<io::Error>>(
    extractor: &mut Extractor,
    texts: &[Text],
    out: &mut dyn Write,
    keep_going: &mut dyn FnMut(usize) -> bool,
) -> Result<(), E> {
    let (format, mut file) = (FileFormat::of(extractor), Vec::new());
    extractor.run(texts, 0..texts.len(), keep_going, &mut |number, rows| {
        file.clear();
        format.write(&mut file, "memory", texts, number..number + 1, &rows).map_err(Error::from)?;
        out.write_all(&(file.len() as u64).to_le_bytes())?;
        out.write_all(&file)?;
        Ok(out.flush()?)
    })
}
