//! The listing of a repository at one revision: files, their sizes and checksums.
//!
//! It is read from the hub, or from a record in the cache. Neither is trusted: a path that would lead out of the
//! snapshot refuses the whole listing.

use std::collections::BTreeMap;

use foretoken_weights::line::needs_escape;
use serde_json::{Map, Value, json};

use crate::checksum::Etag;
use crate::error::{HubError, excerpt};
use crate::name::is_commit;

/// Maximum number of files of a repository.
const FILES_MAX: usize = 100_000;
/// Maximum number of bytes of a path, and of each of its parts.
const PATH_MAX: usize = 1024;
const PART_MAX: usize = 255;
/// The version of the format of records.
const RECORD_VERSION: u64 = 1;

/// Size and checksum of a file, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub size: Option<u64>,
    pub etag: Option<Etag>,
    /// Git's object id; of a large file that of its LFS pointer.
    pub git: Option<Etag>,
}

/// The files of a repository at a commit, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    pub commit: String,
    pub files: BTreeMap<String, Entry>,
}

impl Listing {
    /// Parses the hub's response: `sha`, and `siblings` with `rfilename`, `size`, `blobId` and, for large files, `lfs`.
    pub(crate) fn of_hub(text: &[u8]) -> Result<Self, HubError> {
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| HubError::Content(format!("listing: expected JSON, found: {error}")))?;
        let commit = value["sha"].as_str().filter(|commit| is_commit(commit));
        let commit = commit.ok_or_else(|| wrong("sha", "a commit", &value["sha"]))?.to_string();
        let siblings = value["siblings"].as_array().filter(|files| files.len() <= FILES_MAX);
        let expected = format!("a list of at most {FILES_MAX} files");
        let siblings = siblings.ok_or_else(|| wrong("siblings", &expected, &value["siblings"]))?;
        let mut files = BTreeMap::new();
        for file in siblings {
            let path = file["rfilename"].as_str().ok_or_else(|| wrong("rfilename", "a path", &file["rfilename"]))?;
            let lfs = &file["lfs"];
            let (size, etag) = match lfs.is_object() {
                true => {
                    (lfs["size"].as_u64().or(file["size"].as_u64()), lfs["sha256"].as_str().or(lfs["oid"].as_str()))
                }
                false => (file["size"].as_u64(), file["blobId"].as_str()),
            };
            let parsed = |etag: Option<&str>| {
                etag.map(|text| Etag::parse(text).ok_or_else(|| wrong_etag(path, text))).transpose()
            };
            let (etag, git) = (parsed(etag)?, parsed(file["blobId"].as_str())?);
            files.insert(checked(path)?, Entry { size, etag, git });
        }
        Ok(Self { commit, files })
    }

    /// Parses a record of `huggingface_hub` (`trees/COMMIT.json`, since its version 2).
    pub(crate) fn of_record(commit: &str, text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let is_known = value["format_version"] == RECORD_VERSION;
        let found = value["files"].as_object().filter(|files| is_known && files.len() <= FILES_MAX)?;
        let mut files = BTreeMap::new();
        for (path, entry) in found {
            let git = Etag::parse(entry["blob_id"].as_str()?)?;
            let (size, etag) = match entry["lfs_sha256"].as_str() {
                Some(sha256) => (entry["lfs_size"].as_u64().or(entry["size"].as_u64())?, Etag::parse(sha256)?),
                None => (entry["size"].as_u64()?, git.clone()),
            };
            files.insert(checked(path).ok()?, Entry { size: Some(size), etag: Some(etag), git: Some(git) });
        }
        Some(Self { commit: commit.to_string(), files })
    }

    /// The record of this listing, in the same format; `None` if a size or checksum is unknown.
    pub(crate) fn record(&self) -> Option<String> {
        let entry = |entry: &Entry| {
            let (size, etag, git) = (entry.size?, entry.etag.as_ref()?, entry.git.as_ref()?.to_string());
            Some(match etag.is_sha256() {
                true => json!({ "size": size, "blob_id": git, "lfs_sha256": etag.to_string(), "lfs_size": size }),
                false => json!({ "size": size, "blob_id": git }),
            })
        };
        let files: Option<Map<String, Value>> =
            self.files.iter().map(|(path, file)| Some((path.clone(), entry(file)?))).collect();
        Some(format!("{:#}\n", json!({ "format_version": RECORD_VERSION, "files": files? })))
    }
}

/// Records of incomplete listings, which are files of our own, since other programs expect complete records.
impl Listing {
    /// Parses such a record.
    pub(crate) fn of_partial(commit: &str, text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let is_known = value["format_version"] == RECORD_VERSION;
        let found = value["files"].as_object().filter(|files| is_known && files.len() <= FILES_MAX)?;
        let etag = |value: &Value| value.as_str().and_then(Etag::parse);
        let mut files = BTreeMap::new();
        for (path, entry) in found {
            let entry =
                Entry { size: entry["size"].as_u64(), etag: etag(&entry["etag"]), git: etag(&entry["blob_id"]) };
            files.insert(checked(path).ok()?, entry);
        }
        Some(Self { commit: commit.to_string(), files })
    }

    /// The text of such a record.
    pub(crate) fn partial(&self) -> String {
        let text = |etag: &Option<Etag>| etag.as_ref().map(Etag::to_string);
        let entry =
            |entry: &Entry| json!({ "size": entry.size, "etag": text(&entry.etag), "blob_id": text(&entry.git) });
        let files: Map<String, Value> = self.files.iter().map(|(path, file)| (path.clone(), entry(file))).collect();
        format!("{:#}\n", json!({ "format_version": RECORD_VERSION, "files": files }))
    }

    /// The listing, completed by another one of the same commit.
    pub(crate) fn with(mut self, other: Option<Self>) -> Self {
        for (path, known) in other.into_iter().flat_map(|other| other.files) {
            let place = self.files.get_mut(&path).filter(|entry| entry.size.is_none() || entry.etag.is_none());
            place.into_iter().for_each(|entry| *entry = known.clone());
        }
        self
    }
}

/// Checks that a path stays below the folder that it is joined to, on any system. Only paths that could lead elsewhere
/// or be misleading are refused, since repositories have files of all kinds, few of which are needed.
fn checked(path: &str) -> Result<String, HubError> {
    let is_part = |part: &str| !part.trim_end_matches(['.', ' ']).is_empty() && part.len() <= PART_MAX;
    // Characters that reverse a line on a terminal are misleading.
    let is_letter = |c: char| c != '\\' && !needs_escape(c);
    let has_drive = path.as_bytes().get(1) == Some(&b':') || (cfg!(windows) && path.contains(':'));
    let is_good = path.len() <= PATH_MAX && path.split('/').all(is_part) && path.chars().all(is_letter) && !has_drive;
    match is_good {
        true => Ok(path.to_string()),
        false => {
            let expected = "expected paths below the repository, of plain letters";
            Err(HubError::Content(format!("listing: {expected}, found \"{}\"", excerpt(path))))
        }
    }
}

fn wrong(field: &str, expected: &str, found: &Value) -> HubError {
    let found = match found {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_string(),
        other => excerpt(&other.to_string()),
    };
    HubError::Content(format!("listing: {field}: expected {expected}, found {found}"))
}

/// The error of a file whose etag is not a checksum.
pub(crate) fn wrong_etag(path: &str, found: &str) -> HubError {
    let found = excerpt(found);
    HubError::Content(format!("{path}: etag: expected a checksum (40 or 64 hexadecimal digits), found \"{found}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(files: Value) -> Result<Listing, HubError> {
        Listing::of_hub(json!({ "sha": COMMIT, "siblings": files }).to_string().as_bytes())
    }

    #[test]
    fn large_files_have_their_own_checksum_and_records_keep_it() {
        let (git, sha256) = ("a".repeat(40), "b".repeat(64));
        let mut found = listing(json!([
            { "rfilename": "a/b.json", "size": 7, "blobId": git },
            { "rfilename": "w.gguf", "size": 99, "blobId": git, "lfs": { "sha256": sha256, "size": 99 } },
            { "rfilename": "unknown" },
        ]))
        .expect("it is a listing");
        assert_eq!(found.files["w.gguf"], Entry { size: Some(99), etag: Etag::parse(&sha256), git: Etag::parse(&git) });
        assert_eq!(found.files["a/b.json"], Entry { size: Some(7), etag: Etag::parse(&git), git: Etag::parse(&git) });
        assert_eq!(found.files["unknown"], Entry { size: None, etag: None, git: None });
        // An incomplete listing has no record in this format.
        assert_eq!(found.record(), None);
        // It has one in our own format.
        let partial = Listing::of_partial(COMMIT, found.partial().as_bytes());
        assert_eq!(partial.as_ref(), Some(&found));
        let mut unknown = found.clone();
        unknown.files.values_mut().for_each(|entry| *entry = Entry { size: None, etag: None, git: None });
        assert_eq!((unknown.with(partial), found.clone().with(None)), (found.clone(), found.clone()));
        found.files.remove("unknown");
        let record = found.record().expect("all is known");
        let read = |text: &str| Listing::of_record(COMMIT, text.as_bytes());
        assert_eq!(read(&record), Some(found));
        for (from, to) in [("w.gguf", "../w"), ("format_version\": 1", "format_version\": 2"), ("blob_id", "blob")] {
            assert!(record.contains(from) && read(&record.replace(from, to)).is_none(), "{from}");
        }
    }

    #[test]
    fn a_path_out_of_the_snapshot_refuses_the_listing() {
        for path in [
            "../x",
            "a/../../x",
            "/etc/passwd",
            "a//b",
            "",
            ".",
            "a/",
            "a\\b",
            "c:x",
            "a\nb",
            "a\u{1b}[2J",
            "a\0b",
            "a\u{202e}b",
            "..",
            "a/..",
            "... ",
            &"a/".repeat(600),
            &"a".repeat(300),
        ] {
            let Err(HubError::Content(line)) = listing(json!([{ "rfilename": path }])) else { panic!("{path:?}") };
            assert!(line.starts_with("listing: expected paths") && !line.contains(['\n', '\u{1b}', '\0']), "{line}");
        }
        assert!(listing(json!([{ "rfilename": "ä b/c-1 (2)? \"x\": y*.json" }])).is_ok());
    }

    #[test]
    fn invalid_fields_are_named() {
        let error = |value: Value| match Listing::of_hub(value.to_string().as_bytes()) {
            Err(HubError::Content(line)) => line,
            other => panic!("{value}: {other:?}"),
        };
        assert!(error(json!([])).starts_with("listing: sha: expected a commit, found null"));
        assert!(
            error(json!({ "sha": "../../etc" })).starts_with("listing: sha: expected a commit, found \"../../etc\"")
        );
        assert!(error(json!({ "sha": COMMIT })).starts_with("listing: siblings: expected a list of at most"));
        let file = json!({ "rfilename": "x", "size": 1, "blobId": "../../y" });
        assert!(error(json!({ "sha": COMMIT, "siblings": [file] })).starts_with("x: etag: expected a checksum"));
        assert!(error(json!({ "sha": COMMIT, "siblings": [{}] })).starts_with("listing: rfilename: expected a path"));
    }
}
