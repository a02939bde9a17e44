//! The CPU as a backend for networks larger than memory: their layers are in a file of packed layers.

use std::sync::Arc;

use super::Model;
use crate::backend::{Backend, Loaded};
use crate::error::ModelError;
use crate::linear::Unpacked;
use crate::network::{Network, Progress};
use crate::offload::PackedFile;
use crate::options::Options;

/// The CPU as a backend for networks whose layers are in a file of packed layers: those that do not fit into
/// [`Options::layer_bytes`](crate::Options::layer_bytes) are read for every pass.
#[derive(Debug)]
pub struct Offloading {
    file: Arc<PackedFile>,
}

impl Offloading {
    /// With an opened file, which must be of the network that will be loaded.
    pub fn new(file: PackedFile) -> Self {
        Self { file: Arc::new(file) }
    }

    /// Whether an error is one of its file, which can be made anew.
    pub fn is_file_of(&self, error: &ModelError) -> bool {
        matches!(error, ModelError::Config { file, .. } | ModelError::Io { file, .. } if *file == self.file.name())
    }
}

impl Backend for Offloading {
    fn name(&self) -> &'static str {
        "cpu with offloading"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        Ok(Model::of(network, options, (None, Some(&self.file)), progress)?.into_loaded())
    }
}
