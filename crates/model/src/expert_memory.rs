//! Experts that are packed when rows first choose them (expert offloading): for networks larger than memory.
//!
//! Memory slots for some experts are reserved when the network is loaded, and each slot holds one expert at a time. A
//! layer whose rows choose an expert without a slot packs it, on all threads, into the slot of the least recently used
//! expert; the file stays mapped, so the system may drop its pages and read them again. Slots differ by shape, since
//! experts of different layers may have different types; experts of all layers compete for the slots of their shape. If
//! a layer's rows choose more experts than there are slots, it goes through them in rounds. An expert that is packed
//! later has the same bytes as one that is packed at load, so no result changes.
//!
//! An expert that cannot be packed (a number that the requested type cannot hold) fails the pass that needs it;
//! otherwise loading would have failed. Matrices that are read column by column, and those of checkpoints in integers,
//! FP8 or MXFP4, are first made in memory of their own, one after another. The experts that the next layers are likely
//! to choose are not prefetched, and experts of different shapes do not share slots.

use std::sync::{Mutex, MutexGuard, PoisonError};

use foretoken_kernels::Pool;

use crate::error::{ModelError, Setting};
use crate::linear::{Deferred, Linear, MatrixShape, PackedMatrix, Packing, Unpacked};
use crate::network::{Dense, Experts, Network};
use crate::weight_type::{Converted, WeightType};

/// The experts of a network of which not all are packed.
pub(crate) struct ExpertMemory {
    /// The index of each layer's first expert; `None` for dense layers.
    firsts: Vec<Option<usize>>,
    slots: Mutex<ExpertSlots>,
}

/// All experts, and which of them are in memory.
pub(crate) struct ExpertSlots {
    file: String,
    weight_type: Option<WeightType>,
    /// The experts of all layers.
    experts: Vec<Expert>,
    shapes: Vec<ExpertShape>,
    /// A clock that counts the layers that were run.
    now: u64,
    /// Number of experts of each shape in the round that is being planned.
    counts: Vec<usize>,
    scratch: Converted,
}

/// An expert as it is stored in the file.
struct Expert {
    deferred: Dense<Deferred>,
    /// The index of its shape.
    shape: usize,
    /// The index of its slot among those of its shape, if it has one.
    slot: Option<usize>,
}

/// The slots for experts of one shape.
struct ExpertShape {
    matrices: Vec<MatrixShape>,
    slots: Vec<ExpertSlot>,
}

/// Memory for one expert.
struct ExpertSlot {
    packed: Dense<Linear>,
    /// The expert whose weights it holds.
    expert: Option<usize>,
    /// Whether the weights could not be packed.
    is_invalid: bool,
    /// When its expert was chosen last.
    used: u64,
}

impl ExpertMemory {
    /// Takes the experts out of a network if they do not all fit into `bytes`.
    ///
    /// # Errors
    /// If not even one expert of each shape fits, if the system does not have this memory, or as [`Unpacked::pack`].
    pub(crate) fn take(
        network: &mut Network<Unpacked>,
        bytes: usize,
        packing: &Packing<'_>,
        weight_type: Option<WeightType>,
    ) -> Result<Option<Self>, ModelError> {
        let (experts, mut shapes) = list_experts(network, packing, false)?;
        let demands = shape_demands(&experts, &shapes);
        let ExpertNeed { all, least } = ExpertNeed::of(&demands);
        if all <= bytes {
            return Ok(None);
        }
        let Some(counts) = slots_per_shape(&demands, bytes) else {
            return Err(ModelError::Setting {
                place: network.name.clone(),
                setting: Setting::ExpertBytes,
                value: bytes.to_string(),
                expected: format!("at least {least} bytes, room for an expert of each shape"),
                found: "less".to_string(),
            });
        };
        for (number, count) in counts.into_iter().enumerate() {
            let first = experts.iter().find(|expert| expert.shape == number).expect("a shape is an expert's");
            for _ in 0..count {
                let packed = first.deferred.as_ref().map(&mut |matrix: &Deferred| matrix.reserve(packing))?;
                shapes[number].slots.push(ExpertSlot { packed, expert: None, is_invalid: false, used: 0 });
            }
        }
        let mut firsts = Vec::with_capacity(network.layers.len());
        let mut first = 0;
        for layer in &mut network.layers {
            let experts = layer.ffn.experts_mut();
            firsts.push(experts.is_some().then_some(first));
            first += experts.map_or(0, |experts| std::mem::take(&mut experts.all).len());
        }
        let counts = vec![0; shapes.len()];
        let (file, now, scratch) = (packing.file.to_string(), 0, Converted::default());
        let slots = ExpertSlots { file, weight_type, experts, shapes, now, counts, scratch };
        Ok(Some(Self { firsts, slots: Mutex::new(slots) }))
    }

    /// The matrices of all experts, in their packed form.
    pub(crate) fn matrices(&self) -> Vec<PackedMatrix> {
        let slots = self.lock();
        let matrices_of = |expert: &Expert| slots.shapes[expert.shape].matrices.iter().map(MatrixShape::packed);
        slots.experts.iter().flat_map(matrices_of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ExpertSlots> {
        // A slot that a panic left half packed is marked as invalid.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of the packed experts of all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertNeed {
    /// Bytes of all experts; 0 if there are none.
    pub all: usize,
    /// Bytes of one expert of each shape, the minimum of [`Options::expert_bytes`](crate::Options::expert_bytes).
    pub least: usize,
}

impl ExpertNeed {
    fn of(demands: &[[usize; 2]]) -> Self {
        let sum = |bytes: &dyn Fn(&[usize; 2]) -> usize| demands.iter().map(bytes).fold(0, usize::saturating_add);
        Self { all: sum(&|[count, bytes]| count.saturating_mul(*bytes)), least: sum(&|[_, bytes]| *bytes) }
    }
}

impl Network<Unpacked> {
    /// The memory that the experts take if matrices of floats are converted to `weight_type`. It is an estimate for
    /// checkpoints in integers, whose form depends on scales that are not read here.
    ///
    /// # Errors
    /// If a type is requested and the weights are not floats, or if they are quantized and a tensor holds an impossible
    /// value.
    pub fn expert_need(&self, weight_type: Option<WeightType>) -> Result<ExpertNeed, ModelError> {
        let (experts, shapes) = list_experts(self, &Packing::deferred(&Pool::new(1), &self.source, weight_type), true)?;
        Ok(ExpertNeed::of(&shape_demands(&experts, &shapes)))
    }
}

/// The experts of a network, and the shapes that they have.
fn list_experts(
    network: &Network<Unpacked>,
    packing: &Packing<'_>,
    likely: bool,
) -> Result<(Vec<Expert>, Vec<ExpertShape>), ModelError> {
    let (mut experts, mut shapes): (Vec<Expert>, Vec<ExpertShape>) = Default::default();
    for layer in &network.layers {
        for expert in layer.ffn.parts().1.into_iter().flat_map(|experts| &experts.all) {
            let deferred =
                expert.clone().map_in_units(packing, &mut |matrix, packing| matrix.defer(packing, likely))?;
            let matrices: Vec<MatrixShape> = deferred.matrices().map(|matrix| matrix.shape).collect();
            let known = shapes.iter().position(|shape| shape.matrices == matrices);
            let shape = known.unwrap_or_else(|| {
                shapes.push(ExpertShape { matrices, slots: Vec::new() });
                shapes.len() - 1
            });
            experts.push(Expert { deferred, shape, slot: None });
        }
    }
    Ok((experts, shapes))
}

/// For each shape, the number of experts that have it and the bytes of one.
fn shape_demands(experts: &[Expert], shapes: &[ExpertShape]) -> Vec<[usize; 2]> {
    let mut demands: Vec<[usize; 2]> = shapes.iter().map(|shape| [0, shape.bytes()]).collect();
    experts.iter().for_each(|expert| demands[expert.shape][0] += 1);
    demands
}

impl ExpertShape {
    /// Number of bytes of an expert.
    fn bytes(&self) -> usize {
        self.matrices.iter().fold(0, |all, matrix| all.saturating_add(matrix.bytes()))
    }
}

/// The number of slots that each shape gets of `bytes`: one, and a share of the rest in proportion to the bytes of its
/// other experts. `demands` has the number of experts of each shape and the bytes of one. `None` if not even one of
/// each fits.
fn slots_per_shape(demands: &[[usize; 2]], bytes: usize) -> Option<Vec<usize>> {
    let least = demands.iter().try_fold(0usize, |least, [_, bytes]| least.checked_add(*bytes))?;
    let mut left = bytes.checked_sub(least)?;
    let further: u128 = demands.iter().map(|[count, bytes]| (count - 1) as u128 * *bytes as u128).sum();
    let share = |count: usize| (left as u128 * (count - 1) as u128).checked_div(further).unwrap_or(0) as usize;
    let mut counts: Vec<usize> = demands.iter().map(|[count, _]| 1 + share(*count).min(count - 1)).collect();
    left -= demands.iter().zip(&counts).map(|([_, bytes], slots)| (slots - 1) * bytes).sum::<usize>();
    // The remainder is distributed, since a share need not be a whole number of experts.
    for ([count, bytes], slots) in demands.iter().zip(&mut counts) {
        if *slots < *count && *bytes <= left {
            (*slots, left) = (*slots + 1, left - bytes);
        }
    }
    Some(counts)
}

/// The experts of a layer while its rows go through them.
pub(crate) enum LayerExperts<'a> {
    /// All experts of the layer, packed.
    Packed(&'a [Dense<Linear>]),
    /// The experts that have a slot, and the index of the layer's first expert in the memory.
    Some(MutexGuard<'a, ExpertSlots>, usize),
}

impl<'a> LayerExperts<'a> {
    /// The experts of a layer whose rows have chosen some of them. Chosen experts that have a slot are marked as used,
    /// so that they are the last to lose it.
    pub(crate) fn new(
        (number, experts): (usize, &'a Experts<Linear>),
        memory: Option<&'a ExpertMemory>,
        chosen: impl Iterator<Item = usize>,
    ) -> Self {
        let first = memory.and_then(|memory| memory.firsts[number].map(|first| (memory, first)));
        let Some((memory, first)) = first else { return Self::Packed(&experts.all) };
        let mut slots = memory.lock();
        slots.now += 1;
        chosen.for_each(|expert| slots.touch(first + expert));
        Self::Some(slots, first)
    }

    /// The end of the round that begins with the first of these experts, which are in order: the first expert for which
    /// the slots do not suffice. `None` if they suffice for all.
    pub(crate) fn end(&mut self, mut chosen: impl Iterator<Item = usize>) -> Option<usize> {
        let Self::Some(slots, first) = self else { return None };
        let ExpertSlots { experts, shapes, counts, .. } = &mut **slots;
        counts.fill(0);
        let mut is_beyond = |expert: &usize| {
            let shape = experts[*first + expert].shape;
            counts[shape] += 1;
            counts[shape] > shapes[shape].slots.len()
        };
        chosen.find(|expert| is_beyond(expert))
    }

    /// Packs the experts of a round that are not in memory, and returns their number.
    ///
    /// # Errors
    /// The first error, if an expert cannot be packed. Then its slot is invalid.
    pub(crate) fn load_missing(
        &mut self,
        round: impl Iterator<Item = usize> + Clone,
        pool: &Pool,
    ) -> (usize, Result<(), ModelError>) {
        let Self::Some(slots, first) = self else { return (0, Ok(())) };
        // The experts of this round keep their slots, whatever the layer's other experts need.
        slots.now += 1;
        round.clone().for_each(|expert| slots.touch(*first + expert));
        let (mut packed, mut result) = (0, Ok(()));
        for expert in round.map(|expert| *first + expert) {
            if !slots.is_loaded(expert) {
                packed += 1;
                result = result.and(slots.pack(expert, pool));
            }
        }
        (packed, result)
    }

    /// An expert that is packed.
    pub(crate) fn get(&self, expert: usize) -> &Dense<Linear> {
        match self {
            Self::Packed(all) => &all[expert],
            Self::Some(slots, first) => {
                let Expert { shape, slot, .. } = &slots.experts[first + expert];
                &slots.shapes[*shape].slots[slot.expect("the expert was loaded")].packed
            }
        }
    }
}

impl ExpertSlots {
    /// Whether an expert has its weights in its slot.
    fn is_loaded(&self, expert: usize) -> bool {
        let Expert { shape, slot, .. } = self.experts[expert];
        slot.is_some_and(|slot| !self.shapes[shape].slots[slot].is_invalid)
    }

    /// Marks the slot of an expert, if it has one, as used now.
    fn touch(&mut self, expert: usize) {
        let Expert { shape, slot, .. } = self.experts[expert];
        if let Some(slot) = slot {
            self.shapes[shape].slots[slot].used = self.now;
        }
    }

    /// Packs an expert into its slot, or into the one that was used least recently.
    fn pack(&mut self, expert: usize, pool: &Pool) -> Result<(), ModelError> {
        let Self { file, weight_type, experts, shapes, now, scratch, .. } = self;
        let all = &mut shapes[experts[expert].shape].slots;
        let oldest = || all.iter().enumerate().min_by_key(|(_, slot)| slot.used).map(|(number, _)| number);
        let number = experts[expert].slot.or_else(oldest).expect("each shape has a slot");
        let slot = &mut all[number];
        if let Some(before) = slot.expert.replace(expert) {
            experts[before].slot = None;
        }
        experts[expert].slot = Some(number);
        (slot.used, slot.is_invalid) = (*now, true);
        let packing = Packing::deferred(pool, file, *weight_type);
        for (deferred, into) in experts[expert].deferred.matrices().zip(slot.packed.matrices_mut()) {
            deferred.pack_into(&packing, scratch, into)?;
        }
        slot.is_invalid = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_has_a_slot_and_the_rest_is_divided_by_demand() {
        // Two shapes have equally many experts, which in one of them take half the bytes.
        assert_eq!(slots_per_shape(&[[8, 10], [8, 20]], 29), None);
        assert_eq!(slots_per_shape(&[[8, 10], [8, 20]], 30), Some(vec![1, 1]));
        assert_eq!(slots_per_shape(&[[8, 10], [8, 20]], 135), Some(vec![5, 4]));
        assert_eq!(slots_per_shape(&[[8, 10], [8, 20]], 239), Some(vec![8, 7]));
        assert_eq!(slots_per_shape(&[[1, 10], [3, 20]], usize::MAX), Some(vec![1, 3]));
        assert_eq!(slots_per_shape(&[[9, 7]], 27), Some(vec![3]));
    }
}
