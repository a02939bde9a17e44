//! Times products of one weight type for several numbers of rows, streaming matrices from memory.
//!
//! `cargo run --release -p foretoken-kernels --example product -- [FORMAT] [MATRICES] [ROWS,ROWS,...] [THREADS]`:
//! `MATRICES` matrices of `[5632, 2048]`, which should be so many that no cache holds them. It prints the best and the
//! median time over several rounds, each of which times all numbers of rows. The variable `FORETOKEN_ISA` chooses
//! another instruction set than the best.

use std::time::Instant;

use foretoken_kernels::block::Format;
use foretoken_kernels::dtype::{Matrix, bf16};
use foretoken_kernels::matmul::{Product, product};
use foretoken_kernels::{Compute, Isa, Panels};

const OUTPUTS: usize = 5632;
const INPUTS: usize = 2048;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let name = arguments.get(1).map_or("Q8_0", String::as_str);
    let matrices: usize = arguments.get(2).map_or(48, |n| n.parse().expect("a number of matrices"));
    let rows = arguments.get(3).map_or("1,2,4,8,16,32,64", String::as_str);
    let rows: Vec<usize> = rows.split(',').map(|n| n.parse().expect("numbers of rows")).collect();
    let threads = arguments.get(4).map_or(2, |n| n.parse().expect("a number of threads"));
    if let Ok(name) = std::env::var("FORETOKEN_ISA") {
        Isa::named(&name).expect("FORETOKEN_ISA").choose();
    }
    let compute = Compute::new(threads);
    let elements = OUTPUTS * INPUTS;
    let (mut bytes, mut all) = (0, Vec::new());
    for matrix in 0..matrices {
        all.push(match (name, Format::ALL.into_iter().find(|format| format.name() == name)) {
            (_, Some(format)) => {
                let size = elements / format.elements() * format.bytes();
                let blocks: Vec<u8> = (0..size).map(|i| ((i * 37 + matrix) % 61) as u8).collect();
                let panels = Panels::pack(&compute.pool, format, OUTPUTS, INPUTS, &blocks).expect("there is memory");
                bytes += panels.bytes();
                panels
            }
            ("BF16", _) => {
                bytes += 2 * elements;
                let halves: Vec<_> = (0..elements).map(|i| bf16::from_f32((i % 61) as f32 / 64.0)).collect();
                Panels::pack_floats(&compute.pool, Matrix::BF16(&halves), OUTPUTS, INPUTS).expect("there is memory")
            }
            ("F32", _) => {
                bytes += 4 * elements;
                let floats: Vec<_> = (0..elements).map(|i| (i % 61) as f32 / 64.0).collect();
                Panels::pack_floats(&compute.pool, Matrix::F32(&floats), OUTPUTS, INPUTS).expect("there is memory")
            }
            _ => panic!("no format {name}"),
        });
    }
    let rows_max = rows.iter().copied().max().unwrap_or(1);
    let x: Vec<f32> = (0..rows_max * INPUTS).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5).collect();
    let mut out = vec![0.0; rows_max * OUTPUTS];
    let mut times = vec![Vec::new(); rows.len()];
    for _ in 0..15 {
        for (rows, times) in rows.iter().zip(&mut times) {
            let start = Instant::now();
            for matrix in &all {
                let out = &mut out[..rows * OUTPUTS];
                let one = Product { weights: matrix, bias: None, out, accumulate: false };
                product(&compute, &x[..rows * INPUTS], *rows, INPUTS, one);
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    println!("{name}, {} ({:.0} MB)", compute.isa.name(), bytes as f64 / 1e6);
    for (rows, times) in rows.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        let operations = 2.0 * (rows * elements * matrices) as f64;
        println!(
            "{rows:4} rows: best {best:7.2} median {median:7.2} ms  {:5.1} GB/s  {:6.0} GOP/s",
            bytes as f64 / median / 1e6,
            operations / median / 1e6
        );
    }
}
