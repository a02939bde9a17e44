//! A store survives writing and reading; every invalid file is refused with the name of the field.

use foretoken_speculation::{Ask, Chance, Drafter, SequenceId};
use foretoken_testkit::{table::Table, toy::ToyExecutor};
use xxhash_rust::xxh3::xxh3_64;

use std::fs::Permissions;

use super::*;

const VOCABULARY: Vocabulary = Vocabulary { fingerprint: 0xfeed_beef_0123_4567, len: 100 };

fn document(tokens: &[Token], prompt_len: usize, tenant: Option<u64>) -> Document {
    Document { tokens: tokens.to_vec(), prompt_len, tenant: tenant.map(Tenant) }
}

fn small() -> Store {
    let mut store = Store::new(VOCABULARY, 1000);
    assert!(store.add(document(&[1, 2, 99], 2, None)));
    assert!(store.add(document(&[7], 0, Some(u64::MAX))));
    assert!(store.add(document(&[0, 5], 2, Some(0))));
    store.set_next_request(0x0102_0304_0506_0708);
    store
}

fn bytes(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    format::write(&mut bytes, store).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Store, KeptFileError> {
    format::read("x", bytes, bytes.len() as u64, VOCABULARY).map(|(store, _)| store)
}

/// The bytes with a correct checksum.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 8;
    let checksum = xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The bytes with some of them replaced, and a correct checksum.
fn forged(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = bytes(&small());
    bytes[at..at + with.len()].copy_from_slice(with);
    with_checksum(bytes)
}

/// The bytes of a store in the format of version 1.
fn bytes_of_version_1(store: &Store) -> Vec<u8> {
    let mut bytes = bytes(store);
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    bytes.drain(40..48);
    with_checksum(bytes)
}

#[test]
fn texts_survive_a_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    for store in [small(), Store::new(VOCABULARY, 1000)] {
        store.save(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), store.bytes());
        assert_eq!(Store::load(&path, VOCABULARY, 1000).unwrap(), store);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }
    let mut long = Store::new(VOCABULARY, TOKENS_MAX);
    long.add(document(&[3; 10_000], 9_999, None));
    long.save(&path).unwrap();
    assert_eq!(Store::load(&path, VOCABULARY, TOKENS_MAX).unwrap(), long);
}

#[test]
fn the_next_request_survives_a_round_trip_up_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    let mut store = small();
    for number in [0, 1, u64::from(u32::MAX), NEXT_REQUEST_MAX] {
        store.set_next_request(number);
        store.save(&path).unwrap();
        assert_eq!(Store::load(&path, VOCABULARY, 1000).unwrap().next_request(), number);
    }
    store.set_next_request(NEXT_REQUEST_MAX + 1);
    store.save(&path).unwrap();
    assert!(
        Store::load(&path, VOCABULARY, 1000).unwrap_err().to_string().contains(": next_request: expected at most ")
    );
    assert_eq!(Store::new(VOCABULARY, 9).next_request(), 0);
}

#[test]
fn files_of_version_1_have_one_request_for_each_text() {
    let mut store = small();
    let right = bytes_of_version_1(&store);
    store.set_next_request(3);
    let found = read(&right).unwrap();
    assert_eq!((found.next_request, found.documents), (3, store.documents().cloned().collect()));
    let none = read(&bytes_of_version_1(&Store::new(VOCABULARY, 9))).unwrap();
    assert_eq!((none.next_request, none.documents.len()), (0, 0));
    for len in 0..right.len() {
        assert!(read(&right[..len]).is_err(), "{len} bytes");
    }
    for (at, bit) in (0..right.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut wrong = right.clone();
        wrong[at] ^= 1 << bit;
        assert!(read(&wrong).is_err(), "bit {bit} of byte {at}");
    }
}

#[test]
fn the_oldest_texts_are_dropped_where_there_is_no_room() {
    let mut store = Store::new(VOCABULARY, 5);
    for i in 0..4 {
        assert!(store.add(document(&[i, i], 1, None)));
    }
    let firsts = |store: &Store| store.documents().map(|document| document.tokens[0]).collect::<Vec<_>>();
    assert_eq!((firsts(&store), store.tokens()), (vec![2, 3], 4));
    assert!(!store.add(document(&[1; 6], 0, None)), "longer than the store");
    assert!(!store.add(document(&[100], 0, None)), "not in the vocabulary");
    assert!(!store.add(document(&[], 0, None)), "no text");
    assert_eq!(firsts(&store), [2, 3]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    store.save(&path).unwrap();
    assert_eq!(firsts(&Store::load(&path, VOCABULARY, 3).unwrap()), [3], "less room at loading");
}

#[test]
fn every_changed_bit_is_detected() {
    let right = bytes(&small());
    for at in 0..right.len() {
        for bit in 0..8 {
            let mut wrong = right.clone();
            wrong[at] ^= 1 << bit;
            assert!(read(&wrong).is_err(), "bit {bit} of byte {at}");
        }
        for other in [0, 1, 0xff] {
            let mut wrong = right.clone();
            let same = std::mem::replace(&mut wrong[at], other) == other;
            assert_eq!(read(&wrong).is_ok(), same, "byte {at} as {other}");
        }
    }
}

#[test]
fn every_truncation_and_every_extension_is_detected() {
    let right = bytes(&small());
    for len in 0..right.len() {
        assert!(read(&right[..len]).is_err(), "{len} bytes");
        // A file that shrinks while it is read ends early, whatever its length was before.
        let shrunk = format::read("x", &right[..len], right.len() as u64, VOCABULARY);
        assert!(shrunk.unwrap_err().to_string().contains("the end of the file"), "{len} bytes");
    }
    let longer = [right.as_slice(), &[0]].concat();
    assert_eq!(
        read(&longer).unwrap_err().to_string(),
        "x: length: expected 140 bytes (3 documents with 6 tokens), found 141"
    );
}

/// Files with a correct checksum, each with one wrong field.
#[test]
fn wrong_fields_are_refused_by_name() {
    let u32s = |number: u32| number.to_le_bytes().to_vec();
    let u64s = |number: u64| number.to_le_bytes().to_vec();
    assert!(read(&forged(0, b"ftktexts")).is_ok());
    for (at, with, expected) in [
        (0, b"FTKTEXTS".to_vec(), "magic: expected \"ftktexts\", found \"FTKTEXTS\""),
        (8, u32s(3), "version: expected 1 or 2, found 3"),
        (8, u32s(0), "version: expected 1 or 2, found 0"),
        (8, u32s(1), "length: expected 132 bytes (3 documents with 6 tokens), found 140"),
        (12, u32s(101), "vocabulary: expected 100 tokens (those of the model), found 101"),
        (16, u64s(1), "fingerprint: expected feedbeef01234567 (the model's vocabulary), found 0000000000000001"),
        (24, u64s(2), "length: expected 120 bytes (2 documents with 6 tokens), found 140"),
        (24, u64s(u64::MAX), "documents: expected at most one a token (6), found 18446744073709551615"),
        (32, u64s(7), "length: expected 144 bytes (3 documents with 7 tokens), found 140"),
        (32, u64s(u64::MAX), "tokens: expected at most 1073741824, found 18446744073709551615"),
        (32, u64s(1 << 30), "length: expected 4294967412 bytes (3 documents with 1073741824 tokens), found 140"),
        (
            40,
            u64s(NEXT_REQUEST_MAX + 1),
            "next_request: expected at most 18446744069414584319 (2^32 requests are still to come), \
             found 18446744069414584320",
        ),
        (
            40,
            u64s(u64::MAX),
            "next_request: expected at most 18446744069414584319 (2^32 requests are still to come), \
             found 18446744073709551615",
        ),
        (48, u32s(0), "document 1: tokens: expected 1 to 6 (what is left of the announced ones), found 0"),
        (48, u32s(7), "document 1: tokens: expected 1 to 6 (what is left of the announced ones), found 7"),
        (
            48,
            u32s(u32::MAX),
            "document 1: tokens: expected 1 to 6 (what is left of the announced ones), found 4294967295",
        ),
        (52, u32s(4), "document 1: prompt: expected at most 3 (its tokens), found 4"),
        (56, u32s(2), "document 1: owner: expected 0 (everybody) or 1 (a tenant), found 2"),
        (60, u64s(9), "document 1: tenant: expected 0 (it is everybody's), found 9"),
        (72, u32s(100), "document 1: token 2: expected a number below 100 (the vocabulary), found 100"),
        // The last document takes one token less than there are.
        (104, [u32s(1), u32s(1)].concat(), "tokens: expected 5 (as the documents have), found 6"),
    ] {
        assert_eq!(read(&forged(at, &with)).unwrap_err().to_string(), format!("x: {expected}"));
    }
    let mut wrong = bytes(&small());
    *wrong.last_mut().unwrap() ^= 1;
    let error = read(&wrong).unwrap_err().to_string();
    assert!(error.starts_with("x: checksum: expected ") && error.ends_with(" of what was read"), "{error}");
}

#[test]
fn any_bytes_with_a_correct_checksum_are_texts_or_an_error() {
    let right = bytes(&small());
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = foretoken_testkit::table::mix(state);
        (state % below as u64) as usize
    };
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut wrong = right.clone();
        for _ in 0..=next(3) {
            let (at, small) = (8 + next(right.len() - 16), next(2) == 0);
            wrong[at] = if small { next(8) } else { next(256) } as u8;
        }
        match read(&with_checksum(wrong)) {
            Ok(Store { documents, next_request, .. }) => {
                taken += 1;
                assert!(next_request <= NEXT_REQUEST_MAX);
                let right = |document: &Document| {
                    let known = document.tokens.iter().all(|token| *token < VOCABULARY.len);
                    known && document.prompt_len <= document.tokens.len() && !document.tokens.is_empty()
                };
                assert!(documents.iter().all(right), "{documents:?}");
                assert_eq!(documents.iter().map(|document| document.tokens.len()).sum::<usize>(), 6);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
}

#[test]
fn concurrent_writers_leave_one_complete_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    let mut other = Store::new(VOCABULARY, 1000);
    other.add(document(&[9; 500], 1, None));
    std::thread::scope(|scope| {
        for store in [&small(), &other, &small(), &other] {
            let path = &path;
            let store = store.clone();
            scope.spawn(move || (0..20).for_each(|_| store.save(path).unwrap()));
        }
    });
    let found = Store::load(&path, VOCABULARY, 1000).unwrap();
    assert!(found == small() || found == other);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn a_huge_length_in_a_header_allocates_nothing() {
    // The length agrees with the header, as in a sparse file; the bytes end after the header.
    let len = format::file_len(1 << 30, 1 << 30);
    let mut header = bytes(&small())[..48].to_vec();
    header[24..32].copy_from_slice(&(1u64 << 30).to_le_bytes());
    header[32..40].copy_from_slice(&(1u64 << 30).to_le_bytes());
    let error = format::read("x", header.as_slice(), len, VOCABULARY).unwrap_err();
    assert_eq!(error.to_string(), "x: document 1: tokens: expected 4 bytes, found the end of the file");
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/folder");
    let error = small().save(&missing).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be written: ", missing.display())), "{error}");
    assert!(Store::load(&missing, VOCABULARY, 9).unwrap_err().to_string().contains("cannot be read: "));
    // A folder with something in it cannot be replaced by a file.
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("inside"), "x").unwrap();
    assert!(small().save(&full).is_err() && full.join("inside").exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    assert!(small().save(Path::new("..")).is_err());
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    small().save(&link).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(Store::load(&file, VOCABULARY, 1000).unwrap(), small());
}

#[cfg(unix)]
#[test]
fn dangling_links_are_followed_and_cycles_of_links_refused() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("inner")).unwrap();
    symlink("inner/second", at("first")).unwrap();
    symlink("file", at("inner/second")).unwrap();
    small().save(&at("first")).unwrap();
    assert!(std::fs::symlink_metadata(at("first")).unwrap().is_symlink());
    assert!(std::fs::symlink_metadata(at("inner/file")).unwrap().is_file());
    assert_eq!(Store::load(&at("first"), VOCABULARY, 1000).unwrap(), small());
    symlink("this", at("that")).unwrap();
    symlink("that", at("this")).unwrap();
    let error = small().save(&at("this")).unwrap_err().to_string();
    assert!(error.ends_with("cannot be written: expected at most 40 links, found more"), "{error}");
}

#[cfg(unix)]
#[test]
fn permissions_are_kept_and_a_new_file_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    small().save(&path).unwrap();
    assert_eq!(mode(), 0o600);
    for kept in [0o664, 0o400, 0o640] {
        std::fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
        small().save(&path).unwrap();
        assert_eq!(mode(), kept);
    }
}

/// A drafter that records what it learns.
struct Recorder(std::sync::Arc<std::sync::Mutex<Vec<Document>>>);

impl Drafter for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn warm_up(&mut self, tokens: &[Token], prompt_len: usize, tenant: Option<Tenant>) {
        self.0.lock().unwrap().push(Document { tokens: tokens.to_vec(), prompt_len, tenant });
    }

    fn draft(&mut self, _asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {}

    fn close(&mut self, _sequence: SequenceId) {}
}

#[test]
fn drafters_learn_every_text_in_order() {
    let learned = std::sync::Arc::default();
    let network = ToyExecutor::new(Table::constant(&[1.0]), 8, 1, 8);
    let mut engine = Engine::new(Box::new(network), 1, 8);
    engine.add_drafter(Box::new(Recorder(std::sync::Arc::clone(&learned))));
    let store = small();
    store.warm_up(&mut engine);
    assert_eq!(*learned.lock().unwrap(), store.documents().cloned().collect::<Vec<_>>());
}
