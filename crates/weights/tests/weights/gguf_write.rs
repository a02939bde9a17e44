//! Tests that the GGUF reader reads back what the writer writes.

use std::fs::File;

use foretoken_weights::gguf::{self, Array, Metadata, TensorInfo, Value, Writer};
use foretoken_weights::{Dtype, WeightsError};
use proptest::prelude::*;

fn info(name: &str, dtype: Dtype, shape: &[usize]) -> TensorInfo {
    TensorInfo { name: name.to_string(), dtype, shape: shape.to_vec() }
}

#[test]
fn data_may_come_in_pieces_of_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let q4_k = Dtype::from_ggml_name("Q4_K").unwrap();
    let tensors = [
        info("none", Dtype::F32, &[0, 4]),
        info("odd", Dtype::F16, &[3]),
        info("blocks", q4_k, &[2, 256]),
        info("nothing", Dtype::F32, &[2, 0]),
        info("last", Dtype::Q8_0, &[1, 32]),
        info("end", Dtype::F32, &[0]),
    ];
    let data = [vec![], vec![7u8; 6], (0..288).map(|at| at as u8).collect(), vec![], vec![9; 34], vec![]];
    let file = File::create(&path).unwrap();
    let mut writer = Writer::new(file, "out.gguf", &Metadata::new("none", []), &tensors).unwrap();
    for bytes in &data {
        bytes.chunks(5).for_each(|piece| writer.append(piece).unwrap());
    }
    writer.finish().unwrap();
    let file = gguf::open(&path).unwrap();
    assert_eq!((file.version, file.metadata.len(), file.weights.len()), (3, 0, tensors.len()));
    for (tensor, bytes) in tensors.iter().zip(&data) {
        let found = file.weights.get(&tensor.name).unwrap();
        assert_eq!((found.dtype, &found.shape, &found.bytes[..]), (tensor.dtype, &tensor.shape, &bytes[..]));
    }
}

#[test]
fn what_gguf_cannot_express_is_refused() {
    let error = |entries: Vec<(String, Value)>, tensors: &[TensorInfo]| {
        let mut out = Vec::new();
        let error = Writer::new(&mut out, "OUT", &Metadata::new("source", entries), tensors).unwrap_err().to_string();
        assert_eq!(out.len(), 0, "{error}");
        error
    };
    let twice = [info("t", Dtype::F32, &[1]), info("t", Dtype::F16, &[1])];
    assert_eq!(error(vec![], &twice), "OUT: tensor `t`: name: expected each name once, found it twice");
    let scalar = [info("t", Dtype::F32, &[])];
    assert_eq!(error(vec![], &scalar), "OUT: tensor `t`: number of dimensions: expected 1 to 4, found 0");
    let ragged = error(vec![], &[info("t", Dtype::Q8_0, &[32, 31])]);
    assert!(ragged.starts_with("OUT: tensor `t`: shape: expected rows of a multiple of 32 Q8_0 elements"), "{ragged}");
    let alignment = |value: u32| vec![("general.alignment".to_string(), value.into())];
    let odd = error(alignment(24), &[]);
    assert!(odd.starts_with("source: key `general.alignment`: expected a power of two"), "{odd}");
}

#[test]
fn write_errors_name_the_file() {
    let error = Writer::new(&mut [0u8; 4][..], "OUT", &Metadata::new("none", []), &[]).unwrap_err();
    assert!(matches!(&error, WeightsError::Io { action: "write", .. }));
    assert!(error.to_string().starts_with("OUT: cannot write: "), "{error}");
}

#[test]
#[should_panic(expected = "8 bytes for tensor 0 of 4")]
fn bytes_beyond_a_tensor_are_a_bug() {
    let tensors = [info("t", Dtype::F32, &[1])];
    let mut writer = Writer::new(Vec::new(), "out", &Metadata::new("none", []), &tensors).unwrap();
    let _ = writer.append(&[0; 8]);
}

#[test]
#[should_panic(expected = "0 of 1 tensors are complete")]
fn a_missing_tensor_is_a_bug() {
    let tensors = [info("t", Dtype::F32, &[1])];
    let writer = Writer::new(Vec::new(), "out", &Metadata::new("none", []), &tensors).unwrap();
    let _ = writer.finish();
}

/// Floats other than NaN, which does not equal itself.
fn float() -> impl Strategy<Value = f32> {
    any::<f32>().prop_filter("not a number", |value| !value.is_nan())
}

fn double() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("not a number", |value| !value.is_nan())
}

fn many<T: std::fmt::Debug + 'static>(element: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Vec<T>> {
    prop::collection::vec(element, 0..4).boxed()
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        many(any::<u8>()).prop_map(Array::U8),
        many(any::<i8>()).prop_map(Array::I8),
        many(any::<u16>()).prop_map(Array::U16),
        many(any::<i16>()).prop_map(Array::I16),
        many(any::<u32>()).prop_map(Array::U32),
        many(any::<i32>()).prop_map(Array::I32),
        many(float()).prop_map(Array::F32),
        many(any::<bool>()).prop_map(Array::Bool),
        many(any::<String>()).prop_map(Array::String),
        many(any::<u64>()).prop_map(Array::U64),
        many(any::<i64>()).prop_map(Array::I64),
        many(double()).prop_map(Array::F64),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        float().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        array().prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        double().prop_map(Value::F64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_written_is_read_back(
        entries in prop::collection::btree_map("[a-zé.]{0,8}", value(), 0..8),
        tensors in prop::collection::btree_map(
            "[a-zé.]{0,8}", (prop::collection::vec(0..4_usize, 1..=4), 0..4_usize), 0..6,
        ),
        exponent in prop::option::of(0..8u32),
    ) {
        let mut entries = entries;
        if let Some(exponent) = exponent {
            entries.insert("general.alignment".to_string(), Value::U32(1 << exponent));
        }
        let metadata = Metadata::new("random", entries.clone());
        let kinds = [Dtype::F32, Dtype::BF16, Dtype::Q8_0, Dtype::from_ggml_name("Q6_K").unwrap()];
        let infos: Vec<TensorInfo> = tensors
            .iter()
            .map(|(name, (shape, kind))| {
                let mut shape = shape.clone();
                *shape.last_mut().unwrap() *= kinds[*kind].layout().elements;
                TensorInfo { name: name.clone(), dtype: kinds[*kind], shape }
            })
            .collect();
        let data = |number: usize, info: &TensorInfo| -> Vec<u8> {
            (0..info.dtype.size_of(&info.shape).unwrap()).map(|at| (at * 7 + number) as u8).collect()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random.gguf");
        let mut writer = Writer::new(File::create(&path).unwrap(), "random.gguf", &metadata, &infos).unwrap();
        for (number, info) in infos.iter().enumerate() {
            writer.append(&data(number, info)).unwrap();
        }
        writer.finish().unwrap();
        let file = gguf::open(&path).unwrap();
        let found: Vec<(String, Value)> =
            file.metadata.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        prop_assert_eq!(found, entries.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(file.weights.len(), infos.len());
        for (number, info) in infos.iter().enumerate() {
            let found = file.weights.get(&info.name).unwrap();
            prop_assert_eq!((found.dtype, &found.shape), (info.dtype, &info.shape));
            prop_assert_eq!(&found.bytes[..], &data(number, info)[..]);
        }
    }
}
