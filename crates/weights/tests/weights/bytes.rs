//! Tests of views of bytes: they share their owner, stay inside it, and can be sent to other threads.

use foretoken_weights::{Bytes, Dtype, Layout, Tensor, Weights};

#[test]
fn views_of_views_count_from_their_own_start() {
    let whole = Bytes::from_vec((0..10).collect());
    let part = whole.slice(2..8);
    assert_eq!(part[..], [2, 3, 4, 5, 6, 7]);
    assert_eq!(part.slice(1..3)[..], [3, 4]);
    assert!(part.slice(6..6).is_empty());
    assert_eq!(part.as_ptr(), whole[2..].as_ptr(), "nothing is copied");
}

#[test]
fn a_view_cannot_leave_its_own_range() {
    let part = Bytes::from_static(b"0123456789").slice(2..8);
    #[expect(clippy::reversed_empty_ranges)]
    let outside = [0..7, 7..7, 4..3, 0..usize::MAX, usize::MAX..usize::MAX, usize::MAX..0];
    assert!(outside.into_iter().all(|range| part.get(range).is_none()));
}

#[test]
#[should_panic(expected = "slice 3..5 of a view of 4 bytes")]
fn slicing_outside_is_a_bug() {
    Bytes::from_vec(vec![0; 4]).slice(3..5);
}

#[test]
fn a_mapped_view_outlives_its_map_and_crosses_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, b"some bytes").unwrap();
    let view = Bytes::map(&path).unwrap().slice(5..10);
    let copy = view.clone();
    assert_eq!(std::thread::spawn(move || copy.to_vec()).join().unwrap(), b"bytes");
    assert_eq!(format!("{view:?}"), "Bytes(map, 5..10)");
}

#[test]
fn a_set_refuses_tensors_of_the_wrong_size() {
    let tensor =
        |dtype, len| Tensor { name: "t".to_string(), dtype, shape: vec![2, 32], bytes: Bytes::from_vec(vec![0; len]) };
    assert!(Weights::new("here", [tensor(Dtype::Q8_0, 68)]).is_ok());
    let message = Weights::new("here", [tensor(Dtype::F32, 68)]).unwrap_err().to_string();
    assert_eq!(message, "here: tensor `t`: size: expected 256 bytes for F32 [2, 32], found 68 bytes");
    let empty = Layout { name: "X", elements: 0, bytes: 0 };
    assert!(Weights::new("here", [tensor(Dtype::Other(empty), 0)]).is_err());
}
