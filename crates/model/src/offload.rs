//! Layers that are read from a file for every pass (offloading): for networks larger than memory.
//!
//! All layers are packed once, into a file (`offload/file.rs`): [`write_layers`]. A network that is loaded with
//! [`Offloading`] reads its layers from there, and never from the checkpoint: as many of them as fit stay in memory,
//! and the others are read anew for every pass, ahead of the layers that are computed (`offload/ring.rs`). Layers that
//! stay are spread evenly among the others, so that the disk goes on reading while they are computed. The bytes are
//! those that packing makes in memory, so no result changes.
//!
//! One reading serves all rows of a pass. A pass takes as long as its reading, whatever its number of rows, so a draft
//! that is accepted gains whole passes.
//!
//! Matrices outside the layers (the output head, projections) and everything that is no matrix stay in memory. Networks
//! with experts, encoders and draft heads are not offloaded: experts have a memory of their own (`expert_memory.rs`).

mod file;
mod ring;

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::sync::Arc;

use foretoken_kernels::panel::{PanelFormat, Slot};
use foretoken_kernels::{Compute, Panels, Pool};

use crate::error::{ModelError, Setting};
use crate::executor::ExecutorError;
use crate::linear::{Linear, MatrixPlaces, Packing, Unpacked};
use crate::network::{HeadUnits, Layer, Network, Progress};
use crate::options::Options;
use crate::products::Share;
use crate::spec::Spec;
use crate::weight_type::WeightType;
pub use file::PackedFile;
use file::{PAGE_BYTES, Writer};
use ring::{HeldLayer, Ring};

/// Buffers for layers that are read: one whose layer is computed, and one that is filled meanwhile. A third would keep
/// the disk busy no longer: a layer is computed in less time than the next is read.
const BUFFERS: usize = 2;

/// Bytes of the packed layers of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerNeed {
    /// Bytes of all layers; 0 if they cannot be read from a file for every pass.
    pub all: usize,
    /// The least bytes with which that is possible, the minimum of
    /// [`Options::layer_bytes`](crate::Options::layer_bytes).
    pub least: usize,
}

impl LayerNeed {
    /// Checks that layers of the model may take enough bytes.
    ///
    /// # Errors
    /// They may not.
    pub fn check(self, model: &str, bytes: usize) -> Result<(), ModelError> {
        if bytes >= self.least { Ok(()) } else { Err(too_little(model, bytes, self.least)) }
    }
}

fn too_little(model: &str, bytes: usize, least: usize) -> ModelError {
    ModelError::Setting {
        place: model.to_string(),
        setting: Setting::LayerBytes,
        value: bytes.to_string(),
        expected: format!("at least {least} bytes, room for two layers"),
        found: "less".to_string(),
    }
}

impl Network<Unpacked> {
    /// The memory that the layers take if matrices of floats are converted to `weight_type`. It is an estimate for
    /// checkpoints in integers.
    ///
    /// # Errors
    /// As [`expert_need`](Self::expert_need).
    pub fn layer_need(&self, weight_type: Option<WeightType>) -> Result<LayerNeed, ModelError> {
        if !self.can_be_offloaded() {
            return Ok(LayerNeed::default());
        }
        let pool = Pool::new(1);
        let packing = Packing::new(&pool, &self.source, weight_type, Share::new(None));
        let mut need = LayerNeed::default();
        for layer in &self.layers {
            let mut bytes = 0usize;
            for matrix in layer.matrices() {
                let [outputs, inputs] = matrix.shape();
                let form = matrix.packed_form(&packing, true)?;
                bytes = bytes.saturating_add(Panels::bytes_of(form, outputs, inputs).unwrap_or(usize::MAX));
            }
            let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
            need.all = need.all.saturating_add(bytes);
            need.least = need.least.max(bytes.saturating_mul(BUFFERS));
        }
        need.least = need.least.min(need.all);
        Ok(need)
    }

    fn can_be_offloaded(&self) -> bool {
        self.spec.experts.is_none() && self.encoder.is_none() && self.fusion.is_none()
    }
}

/// An error of [`write_layers`].
#[derive(Debug)]
pub enum WriteLayersError {
    /// A layer cannot be packed.
    Model(ModelError),
    /// The output cannot be written.
    Output(io::Error),
}

impl From<ModelError> for WriteLayersError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<io::Error> for WriteLayersError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Packs all layers of a network, one after another, and writes them as a [`PackedFile`] that is opened with the same
/// `identity`: a line that says everything that the packed bytes depend on. Never more than one layer is in memory.
///
/// # Errors
/// A layer cannot be packed in the type that `options` have, or the output cannot be written.
///
/// # Panics
/// If the network's [`layer_need`](Network::layer_need) is 0.
pub fn write_layers(
    network: Network<Unpacked>,
    options: &Options,
    identity: &str,
    out: &mut dyn Write,
    progress: Progress<'_>,
) -> Result<(), WriteLayersError> {
    assert!(network.can_be_offloaded(), "offload: {} has experts, an encoder, or is a draft head", network.name);
    let compute = Compute::new(options.threads);
    let packing = Packing::new(&compute.pool, &network.source, options.weight_type, Share::new(None));
    let count = network.layers.len();
    let mut writer = Writer::begin(out)?;
    for (done, layer) in network.layers.into_iter().enumerate() {
        let places = WrittenPlaces { writer: RefCell::new(&mut writer), failure: Cell::new(None) };
        layer.pack(&packing.into_places(&places), HeadUnits::of(&network.spec, done))?;
        places.failure.into_inner().map_or(Ok(()), Err)?;
        writer.end_layer()?;
        progress(done + 1, count);
    }
    writer.finish(identity)?;
    Ok(())
}

/// Writes matrices to a file and keeps none of them.
struct WrittenPlaces<'a, 'b> {
    writer: RefCell<&'a mut Writer<'b>>,
    failure: Cell<Option<io::Error>>,
}

impl MatrixPlaces for WrittenPlaces<'_, '_> {
    fn place(&self, matrix: &Unpacked, packing: &Packing<'_>) -> Result<Panels, ModelError> {
        let panels = matrix.panels(packing)?;
        let written = self.writer.borrow_mut().bytes(panels.as_bytes().expect("packed into memory of its own"));
        if let Err(error) = written {
            self.failure.set(Some(error));
        }
        Ok(panels)
    }
}

/// Gives the matrices of a layer their places in its slot, in which the file's bytes will be.
struct SlotPlaces {
    slot: Arc<Slot>,
    bytes: Cell<usize>,
}

impl MatrixPlaces for SlotPlaces {
    fn place(&self, matrix: &Unpacked, packing: &Packing<'_>) -> Result<Panels, ModelError> {
        let form: PanelFormat = matrix.packed_form(packing, false)?;
        let ([outputs, inputs], offset) = (matrix.shape(), self.bytes.get());
        let panels = Panels::in_slot(form, outputs, inputs, &self.slot, offset);
        let panels = panels.ok_or_else(|| matrix.no_memory(packing))?;
        self.bytes.set(offset + panels.bytes());
        Ok(panels)
    }
}

/// The layers of a loaded network, of which some are read for every pass.
pub(crate) struct Offload {
    /// For each layer its number among those that are read; `None` for those that stay in memory.
    numbers: Vec<Option<usize>>,
    /// `None` if all layers stay.
    ring: Option<Ring>,
}

impl Offload {
    /// Packs everything of a network but its layers, reads those layers of its file that stay in memory if layers may
    /// take these bytes, and begins to read the others.
    ///
    /// # Errors
    /// A matrix holds an impossible value; the file has other layers, cannot be read, or is damaged; or the system has
    /// too little memory.
    pub(crate) fn load(
        network: Network<Unpacked>,
        packing: &Packing<'_>,
        (file, layer_bytes): (&Arc<PackedFile>, Option<usize>),
        progress: Progress<'_>,
    ) -> Result<(Network<Linear>, Self), ModelError> {
        let mut slots = Vec::new();
        let place = &mut |spec: &Spec, layers| place_layers((spec, layers), packing, file, &mut slots);
        let network = network.pack_with(packing, &mut *progress, Some(place))?;
        let offload = Self::start(slots, file, (&network.name, layer_bytes.unwrap_or(usize::MAX)), progress)?;
        Ok((network, offload))
    }

    fn start(
        slots: Vec<Arc<Slot>>,
        file: &Arc<PackedFile>,
        (name, layer_bytes): (&str, usize),
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        let sizes: Vec<usize> = file.layers().iter().map(|layer| layer.bytes).collect();
        let Some(are_read) = choose_layers(&sizes, layer_bytes) else {
            let least = sizes.iter().max().map_or(0, |largest| largest.saturating_mul(BUFFERS)).min(sizes.iter().sum());
            return Err(too_little(name, layer_bytes, least));
        };
        let mut numbers = Vec::with_capacity(slots.len());
        let (mut in_ring, count) = (Vec::new(), slots.len());
        for (number, (slot, is_read)) in slots.into_iter().zip(are_read).enumerate() {
            numbers.push(is_read.then_some(in_ring.len()));
            if is_read {
                in_ring.push((number, slot));
            } else {
                let mut buffer = file::buffer(file, sizes[number])?;
                file.read_layer(number, &mut buffer, true)?;
                slot.put(buffer);
            }
            progress(number + 1, count);
        }
        let ring = if in_ring.is_empty() { None } else { Some(Ring::start(in_ring, file)?) };
        Ok(Self { numbers, ring })
    }

    /// Waits until a layer is in memory, and keeps it there until the returned value is dropped. `None` for a layer
    /// that stays.
    ///
    /// # Errors
    /// [`ExecutorError::Failed`] if it cannot be read. The next pass tries again.
    pub(crate) fn hold(&self, layer: usize) -> Result<Option<HeldLayer<'_>>, ExecutorError> {
        let number = self.numbers[layer].zip(self.ring.as_ref());
        number.map(|(number, ring)| ring.hold(number)).transpose()
    }
}

/// Gives every layer of a described network a slot, in which its matrices will be; the slots are added to `slots`.
/// `file`: of these layers.
///
/// # Errors
/// The file has other layers, or a matrix holds an impossible value.
fn place_layers(
    (spec, layers): (&Spec, Vec<Layer<Unpacked>>),
    packing: &Packing<'_>,
    file: &PackedFile,
    slots: &mut Vec<Arc<Slot>>,
) -> Result<Vec<Layer<Linear>>, ModelError> {
    file.check_count(layers.len())?;
    let place = |(number, layer): (usize, Layer<Unpacked>)| {
        let places = SlotPlaces { slot: Arc::default(), bytes: Cell::new(0) };
        let packed = layer.pack(&packing.into_places(&places), HeadUnits::of(spec, number))?;
        file.check_layer(number, places.bytes.get())?;
        slots.push(places.slot);
        Ok(packed)
    };
    layers.into_iter().enumerate().map(place).collect()
}

/// Which layers of these numbers of bytes are read for every pass, if layers may take `bytes`; `None` if that is too
/// little. As few as possible are read, at even distances.
fn choose_layers(sizes: &[usize], bytes: usize) -> Option<Vec<bool>> {
    let count = sizes.len();
    let spread = |read: usize| (0..count).map(|layer| (layer + 1) * read / count > layer * read / count).collect();
    // As many layers as there are buffers would stay in them, so no fewer than one more are read.
    let numbers = [0].into_iter().chain(BUFFERS + 1..=count);
    numbers.map(spread).find(|are_read: &Vec<bool>| {
        let of = |is_read: bool| sizes.iter().zip(are_read).filter(move |(_, read)| **read == is_read);
        let stay = of(false).fold(0usize, |all, (size, _)| all.saturating_add(*size));
        let largest = of(true).map(|(size, _)| *size).max().unwrap_or(0);
        largest.saturating_mul(BUFFERS).saturating_add(stay) <= bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_layers_as_possible_are_read_at_even_distances() {
        let chosen = |sizes: &[usize], bytes| {
            let of = |read: bool| if read { 'r' } else { '-' };
            choose_layers(sizes, bytes).map(|read| read.into_iter().map(of).collect::<String>())
        };
        let found = [80, 79, 70, 69, 45, 20, 19].map(|bytes| chosen(&[10; 8], bytes));
        let expected = ["--------", "--r--r-r", "--r--r-r", "-r-r-r-r", "-rrr-rrr", "rrrrrrrr"].map(String::from);
        assert_eq!(found[..6], expected.map(Some));
        assert_eq!(found[6], None);
        assert_eq!(chosen(&[10, 30, 10, 30], 60).as_deref(), Some("rrrr"));
        assert_eq!([chosen(&[10; 2], 20), chosen(&[10; 2], 19)], [Some("--".to_string()), None]);
    }
}
