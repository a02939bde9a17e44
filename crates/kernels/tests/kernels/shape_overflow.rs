//! Tests that shapes whose product overflows are refused by the assertions on shapes, even if it wraps around to a
//! length that fits. Without these checks a release build would read beyond the slices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foretoken_kernels::attention::{Arguments, CacheTensor, CacheType, RowSlots, Scratch, attention};
use foretoken_kernels::dtype::Matrix;
use foretoken_kernels::matmul::{Product, product};
use foretoken_kernels::{Compute, Isa, Panels, Pool};

/// The message of the panic that `call` ends with.
fn refusal(call: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(call)).expect_err("an impossible shape was accepted");
    payload.downcast_ref::<String>().cloned().or(payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap()
}

#[test]
fn rows_times_inputs_may_not_wrap_around() {
    let compute = Compute::with(Isa::PORTABLE, Pool::new(1));
    let weights = Panels::pack_floats(&compute.pool, Matrix::F32(&[]), 0, 2).expect("there is memory");
    let one = Product { weights: &weights, bias: None, out: &mut [], accumulate: false };
    let message = refusal(|| product(&compute, &[], usize::MAX / 2 + 1, 2, one));
    assert!(message.starts_with("product: x has 0 elements"), "{message}");
}

#[test]
fn panels_whose_size_overflows_are_refused() {
    let pool = Pool::new(1);
    assert!(Panels::pack_floats(&pool, Matrix::F32(&[]), 0, usize::MAX / 8).is_none());
}

#[test]
fn heads_may_not_wrap_around() {
    let compute = Compute::with(Isa::PORTABLE, Pool::new(1));
    let keys = CacheTensor::keys(CacheType::F32, 16, 1, 16).unwrap();
    let values = CacheTensor::values(CacheType::F32, 16, 1, 16).unwrap();
    let arguments = Arguments::new(usize::MAX / 16 + 1, 1.0, &keys, &values);
    let row_slots = [RowSlots { prefix: &[0], tail: &[] }];
    let message = refusal(|| attention(&compute, &arguments, &[], &row_slots, &mut Scratch::default(), &mut []));
    assert_eq!(message, "attention: shape of queries");
}
