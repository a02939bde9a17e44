//! The key of cached rows: everything that they depend on besides their tokens, in named parts, so that an error can
//! name the part that differs.
//!
//! The model is identified by a hash of all its tensors and its configuration. Comparing sizes, dates or samples would
//! be faster, but could not distinguish a model from one that was trained a step longer; and the system has the file in
//! memory anyway, since it was just loaded. XXH3-128 hashes 3 to 4 GB/s of a mapped file. The hash need not be
//! cryptographic: whoever writes a file of rows can write any rows into it.
//!
//! The angles of rotary embeddings depend on the system's sine and cosine, and the frequencies of some networks on the
//! context length. So the angles themselves are hashed, for all positions of the prefix.
//!
//! Threads, pages and batches are not part of the key, since rows do not depend on them.

use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_kernels::Isa;
use foretoken_kernels::rope::angles;
use foretoken_model::checkpoint::Config;
use foretoken_model::spec::{Positions, Rotation};
use foretoken_model::{ARITHMETIC_VERSION, Checkpoint, Spec};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::settings::ModelSettings;

/// A part of a key: its name and its value, each on one line.
pub(super) type Part = (&'static str, String);

/// Bytes of tensors that are hashed at a time.
const CHUNK: usize = 1 << 24;

/// The key of the rows of a generator's cache.
pub(crate) struct Key {
    spec: Spec,
    /// The parts that are the same for every prefix.
    fixed: Vec<Part>,
}

impl Key {
    /// The key for a checkpoint whose network was loaded as `spec`. Reads all tensors, on as many threads as the
    /// settings have.
    pub(crate) fn of(checkpoint: &Checkpoint, spec: &Spec, settings: &ModelSettings) -> Self {
        let ModelSettings { dtype, cache_type_k, cache_type_v, .. } = settings;
        let model = model_hash(checkpoint, spec, settings.threads());
        let machine = format!("{ARITHMETIC_VERSION}, {}, {}", Isa::chosen().name(), std::env::consts::ARCH);
        let fixed = vec![
            ("model", format!("{model:032x}")),
            ("dtype", dtype.map_or("as they are".to_string(), |dtype| dtype.to_string())),
            ("cache_type_k", cache_type_k.name().to_string()),
            ("cache_type_v", cache_type_v.name().to_string()),
            ("arithmetic", machine),
        ];
        Self { spec: spec.clone(), fixed }
    }

    /// The parts of the key of a prefix of `len` tokens.
    pub(super) fn parts(&self, len: usize) -> Vec<Part> {
        let rope = ("rope", format!("{:016x}", positions_hash(&self.spec, len)));
        self.fixed.iter().cloned().chain([rope]).collect()
    }

    /// The number of tokens in the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        self.spec.vocabulary
    }
}

/// A hash of everything in rows that depends on the first `len` positions.
fn positions_hash(spec: &Spec, len: usize) -> u64 {
    let mut hash = Xxh3::new();
    // Different floats have different decimals.
    hash.update(format!("{:?} {:?}", spec.positions, spec.query_growth).as_bytes());
    let mut put = |numbers: &[f32]| numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
    for Rotation { frequencies, magnitude, .. } in spec.positions.rotations() {
        let mut row = vec![0.0; 2 * frequencies.len()];
        for position in 0..len {
            angles(position, frequencies, *magnitude, &mut row);
            put(&row);
        }
    }
    if let Some(growth) = spec.query_growth {
        (0..len).for_each(|position| put(&[growth.at(position)]));
    }
    hash.digest()
}

/// A hash of a network's shape, configuration and tensors.
fn model_hash(checkpoint: &Checkpoint, spec: &Spec, threads: usize) -> u128 {
    let mut hash = Xxh3::new();
    let mut put = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    // The positions, which depend on the context length, are in the part `rope`.
    let shown = format!("{:?}", Spec { positions: Positions::Learned, ..spec.clone() });
    // Fields that were added later are left out where they are absent, so hashes from before stay valid.
    put(shown.replace(", encoder: None }", " }").as_bytes());
    match &checkpoint.config {
        Config::Json(config) => put(config.text().as_bytes()),
        // The network does not depend on the tokenizer.
        Config::Gguf(metadata) => metadata
            .iter()
            .filter(|(key, _)| !key.starts_with("tokenizer."))
            .for_each(|(key, value)| put(format!("{key}: {value:?}").as_bytes())),
    }
    for tensor in checkpoint.weights.iter() {
        put(format!("{}: {:?} {:?}", tensor.name, tensor.dtype, tensor.shape).as_bytes());
    }
    tensor_hashes(checkpoint, threads).iter().for_each(|chunk| put(&chunk.to_le_bytes()));
    hash.digest128()
}

/// Hashes of all tensors, in chunks.
fn tensor_hashes(checkpoint: &Checkpoint, threads: usize) -> Vec<u128> {
    let chunks = |len: usize| (0..len).step_by(CHUNK).map(move |start| start..len.min(start + CHUNK));
    let tensors = checkpoint.weights.iter().map(|tensor| &tensor.bytes);
    let all: Vec<_> = tensors.flat_map(|bytes| chunks(bytes.len()).map(|range| bytes.slice(range))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((at, chunk)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, all.get(at)?)))
        {
            done.push((at, xxh3_128(chunk)));
            // The weights are packed by now, so these pages of the file are not needed again.
            chunk.release();
        }
        done
    };
    let mut hashes = vec![0; all.len()];
    std::thread::scope(|scope| {
        // This thread hashes as well, so all chunks are hashed even if the system refuses other threads.
        let worker = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let workers: Vec<_> = (1..threads.clamp(1, all.len().max(1))).filter_map(worker).collect();
        let mut take = |done: Vec<(usize, u128)>| done.into_iter().for_each(|(at, hash)| hashes[at] = hash);
        take(work());
        workers.into_iter().for_each(|worker| take(worker.join().expect("hashing does not panic")));
    });
    hashes
}
