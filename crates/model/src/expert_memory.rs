//! Experts that are packed when rows first choose them: for networks that are larger than memory.
//!
//! The idea: memory for some experts is reserved when the network is loaded, and each of these places holds one at a
//! time. A layer whose rows choose an expert that has no place packs it, on all threads, where the one lay that was
//! chosen longest ago; the file stays mapped, so the system may give its pages away and read them again. Places are
//! told apart by shape, since experts of different layers may be in different types; all that fit are taken by whoever
//! needs them, in whatever layer. Where a layer's rows choose more experts than there are places, it goes through them
//! in rounds. What is packed later has the bytes of what is packed at once, so no result changes.
//!
//! An expert that cannot be packed (a number that the type that is asked for cannot hold) fails the pass that needs it,
//! where it would have failed the loading. Matrices that are read column by column, and those of checkpoints in
//! integers, FP8 or MXFP4, are made in memory of their own first, one after another. Left out: reading ahead what the
//! next layers are likely to choose, and places that experts of several shapes share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use foretoken_kernels::Pool;

use crate::backend::PackedMatrix;
use crate::error::{ModelError, Setting};
use crate::linear::{Later, Linear, MatrixShape, Packing, Unpacked};
use crate::network::{Dense, Experts, Network};
use crate::weight_type::{Converted, WeightType};

/// The experts of a network that are not all packed.
pub(crate) struct ExpertMemory {
    /// Of each layer its first expert; none of one without.
    firsts: Vec<Option<usize>>,
    places: Mutex<Places>,
}

/// Who lies where.
pub(crate) struct Places {
    file: String,
    weight_type: Option<WeightType>,
    /// Of all layers.
    experts: Vec<Expert>,
    shapes: Vec<Shape>,
    /// Counts the layers that were run.
    now: u64,
    /// Experts of the round that is being made up, by shape.
    counts: Vec<usize>,
    scratch: Converted,
}

/// An expert as it lies in the file.
struct Expert {
    later: Dense<Later>,
    /// Its number.
    shape: usize,
    /// Its place among those of its shape, if it has one.
    place: Option<usize>,
}

/// Places for experts of one shape.
struct Shape {
    matrices: Vec<MatrixShape>,
    places: Vec<Place>,
}

/// Room for one expert.
struct Place {
    packed: Dense<Linear>,
    /// Whose weights these are.
    expert: Option<usize>,
    /// They could not be packed.
    is_wrong: bool,
    /// When it was chosen last.
    used: u64,
}

impl ExpertMemory {
    /// Takes the experts out of a network if they do not all fit into so many bytes.
    ///
    /// # Errors
    /// Not even one of each shape fits, there is no such memory, or as [`Unpacked::pack`].
    pub(crate) fn take(
        network: &mut Network<Unpacked>,
        bytes: usize,
        packing: &Packing<'_>,
        weight_type: Option<WeightType>,
    ) -> Result<Option<Self>, ModelError> {
        let (experts, mut shapes) = listed(network, packing, false)?;
        let kinds = kinds(&experts, &shapes);
        let ExpertNeed { all, least } = ExpertNeed::of(&kinds);
        if all <= bytes {
            return Ok(None);
        }
        let Some(counts) = places(&kinds, bytes) else {
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
                let packed = first.later.as_ref().map(&mut |matrix: &Later| matrix.reserve(packing))?;
                shapes[number].places.push(Place { packed, expert: None, is_wrong: false, used: 0 });
            }
        }
        let mut firsts = Vec::with_capacity(network.layers.len());
        let mut first = 0;
        for layer in &mut network.layers {
            let experts = layer.feed.experts_mut();
            firsts.push(experts.is_some().then_some(first));
            first += experts.map_or(0, |experts| std::mem::take(&mut experts.all).len());
        }
        let counts = vec![0; shapes.len()];
        let (file, now, scratch) = (packing.file.to_string(), 0, Converted::default());
        let places = Places { file, weight_type, experts, shapes, now, counts, scratch };
        Ok(Some(Self { firsts, places: Mutex::new(places) }))
    }

    /// The experts' matrices, as they are when they are packed.
    pub(crate) fn matrices(&self) -> Vec<PackedMatrix> {
        let places = self.lock();
        let of = |expert: &Expert| places.shapes[expert.shape].matrices.iter().map(MatrixShape::packed);
        places.experts.iter().flat_map(of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        // What a panic left half packed is marked as wrong.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of the experts that rows choose, as they are packed, of all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertNeed {
    /// Of all of them; 0: there are none.
    pub all: usize,
    /// Of one of each shape, for which there must be room ([`Options::expert_bytes`](crate::Options::expert_bytes)).
    pub least: usize,
}

impl ExpertNeed {
    fn of(kinds: &[[usize; 2]]) -> Self {
        let sum = |bytes: &dyn Fn(&[usize; 2]) -> usize| kinds.iter().map(bytes).fold(0, usize::saturating_add);
        Self { all: sum(&|[count, bytes]| count.saturating_mul(*bytes)), least: sum(&|[_, bytes]| *bytes) }
    }
}

impl Network<Unpacked> {
    /// What the experts take, where matrices of floats are brought to a type. Of checkpoints in integers about that:
    /// their scales decide, which are not read for it.
    ///
    /// # Errors
    /// A type is asked for, and the weights are not floats; or they are quantized, and a tensor holds what cannot be.
    pub fn expert_need(&self, weight_type: Option<WeightType>) -> Result<ExpertNeed, ModelError> {
        let (experts, shapes) = listed(self, &Packing::later(&Pool::new(1), &self.source, weight_type), true)?;
        Ok(ExpertNeed::of(&kinds(&experts, &shapes)))
    }
}

/// The experts of a network, and the shapes that they have.
fn listed(
    network: &Network<Unpacked>,
    packing: &Packing<'_>,
    likely: bool,
) -> Result<(Vec<Expert>, Vec<Shape>), ModelError> {
    let (mut experts, mut shapes): (Vec<Expert>, Vec<Shape>) = Default::default();
    for layer in &network.layers {
        for expert in layer.feed.parts().1.into_iter().flat_map(|experts| &experts.all) {
            let later = expert.clone().map(&mut |matrix| matrix.later(packing, likely))?;
            let matrices: Vec<MatrixShape> = later.matrices().map(|matrix| matrix.shape).collect();
            let known = shapes.iter().position(|shape| shape.matrices == matrices);
            let shape = known.unwrap_or_else(|| {
                shapes.push(Shape { matrices, places: Vec::new() });
                shapes.len() - 1
            });
            experts.push(Expert { later, shape, place: None });
        }
    }
    Ok((experts, shapes))
}

/// Of each shape how many experts have it, and the bytes of one.
fn kinds(experts: &[Expert], shapes: &[Shape]) -> Vec<[usize; 2]> {
    let mut kinds: Vec<[usize; 2]> = shapes.iter().map(|shape| [0, shape.bytes()]).collect();
    experts.iter().for_each(|expert| kinds[expert.shape][0] += 1);
    kinds
}

impl Shape {
    /// Bytes of an expert.
    fn bytes(&self) -> usize {
        self.matrices.iter().fold(0, |all, matrix| all.saturating_add(matrix.bytes()))
    }
}

/// How many places each shape gets of so many bytes: one, and of the rest as large a part as its other experts have of
/// all. `kinds`: of each shape how many experts there are, and the bytes of one. None: one of each is too much.
fn places(kinds: &[[usize; 2]], bytes: usize) -> Option<Vec<usize>> {
    let least = kinds.iter().try_fold(0usize, |least, [_, bytes]| least.checked_add(*bytes))?;
    let mut left = bytes.checked_sub(least)?;
    let further: u128 = kinds.iter().map(|[count, bytes]| (count - 1) as u128 * *bytes as u128).sum();
    let share = |count: usize| (left as u128 * (count - 1) as u128).checked_div(further).unwrap_or(0) as usize;
    let mut counts: Vec<usize> = kinds.iter().map(|[count, _]| 1 + share(*count).min(count - 1)).collect();
    left -= kinds.iter().zip(&counts).map(|([_, bytes], places)| (places - 1) * bytes).sum::<usize>();
    // What the parts leave over, being no whole experts.
    for ([count, bytes], places) in kinds.iter().zip(&mut counts) {
        if *places < *count && *bytes <= left {
            (*places, left) = (*places + 1, left - bytes);
        }
    }
    Some(counts)
}

/// The experts of a layer while its rows go through them.
pub(crate) enum Held<'a> {
    /// All of them.
    Packed(&'a [Dense<Linear>]),
    /// Those of them that have a place; the first one's number in the memory.
    Some(MutexGuard<'a, Places>, usize),
}

impl<'a> Held<'a> {
    /// Those of a layer whose rows have chosen some: of these the ones that are there will not make room for others,
    /// as long as there is another way.
    pub(crate) fn new(
        (number, experts): (usize, &'a Experts<Linear>),
        memory: Option<&'a ExpertMemory>,
        chosen: impl Iterator<Item = usize>,
    ) -> Self {
        let first = memory.and_then(|memory| memory.firsts[number].map(|first| (memory, first)));
        let Some((memory, first)) = first else { return Self::Packed(&experts.all) };
        let mut places = memory.lock();
        places.now += 1;
        chosen.for_each(|expert| places.touch(first + expert));
        Self::Some(places, first)
    }

    /// Where the round ends that begins with the first of these experts, which are in order: there is a place for all
    /// before it. None: there are no others behind it.
    pub(crate) fn end(&mut self, mut chosen: impl Iterator<Item = usize>) -> Option<usize> {
        let Self::Some(places, first) = self else { return None };
        let Places { experts, shapes, counts, .. } = &mut **places;
        counts.fill(0);
        let mut is_beyond = |expert: &usize| {
            let shape = experts[*first + expert].shape;
            counts[shape] += 1;
            counts[shape] > shapes[shape].places.len()
        };
        chosen.find(|expert| is_beyond(expert))
    }

    /// Packs those of a round that are missing; says how many.
    ///
    /// # Errors
    /// One cannot be packed: the first that could not. Then what lies in its place means nothing.
    pub(crate) fn bring(
        &mut self,
        round: impl Iterator<Item = usize> + Clone,
        pool: &Pool,
    ) -> (usize, Result<(), ModelError>) {
        let Self::Some(places, first) = self else { return (0, Ok(())) };
        // Those of this round stay, whatever the layer's others need.
        places.now += 1;
        round.clone().for_each(|expert| places.touch(*first + expert));
        let (mut packed, mut said) = (0, Ok(()));
        for expert in round.map(|expert| *first + expert) {
            if !places.is_there(expert) {
                packed += 1;
                said = said.and(places.pack(expert, pool));
            }
        }
        (packed, said)
    }

    /// One that has a place, or all do.
    pub(crate) fn get(&self, expert: usize) -> &Dense<Linear> {
        match self {
            Self::Packed(all) => &all[expert],
            Self::Some(places, first) => {
                let Expert { shape, place, .. } = &places.experts[first + expert];
                &places.shapes[*shape].places[place.expect("it was brought")].packed
            }
        }
    }
}

impl Places {
    /// Whether an expert has its weights in its place.
    fn is_there(&self, expert: usize) -> bool {
        let Expert { shape, place, .. } = self.experts[expert];
        place.is_some_and(|place| !self.shapes[shape].places[place].is_wrong)
    }

    /// Notes that an expert is chosen, if it has a place.
    fn touch(&mut self, expert: usize) {
        let Expert { shape, place, .. } = self.experts[expert];
        if let Some(place) = place {
            self.shapes[shape].places[place].used = self.now;
        }
    }

    /// Packs an expert into its place, or where the one lies that was chosen longest ago.
    fn pack(&mut self, expert: usize, pool: &Pool) -> Result<(), ModelError> {
        let Self { file, weight_type, experts, shapes, now, scratch, .. } = self;
        let all = &mut shapes[experts[expert].shape].places;
        let oldest = || all.iter().enumerate().min_by_key(|(_, place)| place.used).map(|(number, _)| number);
        let number = experts[expert].place.or_else(oldest).expect("each shape has a place");
        let place = &mut all[number];
        if let Some(before) = place.expert.replace(expert) {
            experts[before].place = None;
        }
        experts[expert].place = Some(number);
        (place.used, place.is_wrong) = (*now, true);
        let packing = Packing::later(pool, file, *weight_type);
        for (later, into) in experts[expert].later.matrices().zip(place.packed.matrices_mut()) {
            later.pack_into(&packing, scratch, into)?;
        }
        place.is_wrong = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_has_a_place_and_the_rest_is_shared_by_what_they_need() {
        // Two shapes of as many experts, one half as large.
        assert_eq!(places(&[[8, 10], [8, 20]], 29), None);
        assert_eq!(places(&[[8, 10], [8, 20]], 30), Some(vec![1, 1]));
        assert_eq!(places(&[[8, 10], [8, 20]], 135), Some(vec![5, 4]));
        assert_eq!(places(&[[8, 10], [8, 20]], 239), Some(vec![8, 7]));
        assert_eq!(places(&[[1, 10], [3, 20]], usize::MAX), Some(vec![1, 3]));
        assert_eq!(places(&[[9, 7]], 27), Some(vec![3]));
    }
}
