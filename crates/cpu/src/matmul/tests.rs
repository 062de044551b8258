//! Products of pairs through the whole path, packing, blocks, edges and stores, in every build by emulation, and with the
//! instruction where there is one. Other ways of computing are tested through the crate's interface.

use tensor::ops::matmul::{self, MatmulDims};
use tensor::rng::Stream;
use tensor::{Backend, DType, Shape, Tensor};
use testing::compare::{Tolerance, assert_close};
use testing::op_table::{check_matmul_nn, check_matmul_nt, check_matmul_tn, nmse_bound};

use crate::isa::Isa;
use crate::{CpuBackend, CpuConfig};

fn isas() -> impl Iterator<Item = Isa> {
    Isa::available().into_iter().filter(|isa| isa.multiplies_pairs()).chain([Isa::EMULATED_BF16])
}

fn backend(isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), isa: Some(isa), ..CpuConfig::default() })
        .expect("threads start")
}

fn backends() -> impl Iterator<Item = CpuBackend> {
    isas().flat_map(|isa| [1, 2, 3].map(|threads| backend(isa, threads)))
}

#[test]
fn paired_products_equal_their_references() {
    for backend in backends() {
        check_matmul_nt(&backend, DType::Bf16);
        check_matmul_nn(&backend, DType::Bf16);
        check_matmul_tn(&backend, DType::Bf16);
    }
}

/// Normal numbers in a tensor, and their values as the tensor holds them.
fn normal(backend: &dyn Backend, seed: u64, shape: [usize; 2], dtype: DType) -> (Tensor, Vec<f64>) {
    let shape = Shape::new(&shape);
    let mut values = vec![0.0f32; shape.num_elements()];
    Stream::new(seed, 1).fill_normal(&mut values, 1.0);
    let tensor = backend.from_f32(shape, dtype, &values).expect("small tensors fit");
    let values = wide(backend, &tensor);
    (tensor, values)
}

fn wide(backend: &dyn Backend, x: &Tensor) -> Vec<f64> {
    backend.to_f32(x).expect("a floating-point tensor").into_iter().map(f64::from).collect()
}

/// All layouts of one size; outputs in `out` where an op lets choose.
fn check_layouts(backend: &dyn Backend, dims: MatmulDims, out: DType) {
    let MatmulDims { m, n, k } = dims;
    let what = format!("{dims:?} into {out} on {}", backend.describe());
    let check = |name: &str, found: &Tensor, expected: &[f64], terms: usize| {
        let expected = testing::compare::round_to(found.dtype(), expected);
        let bound = Tolerance::nmse(nmse_bound(found.dtype(), expected.len()));
        let floor = 0.3 * (terms as f64).sqrt();
        assert_close(&format!("{name} of {what}"), &wide(backend, found), &expected, bound.with_floor(floor));
    };
    let ((x, x_values), (w, w_values)) =
        (normal(backend, 1, [m, k], DType::Bf16), normal(backend, 2, [n, k], DType::Bf16));
    let (dy, dy_values) = normal(backend, 3, [m, n], DType::Bf16);

    let (mut y, mut expected) = normal(backend, 4, [m, n], out);
    backend.matmul_nt(&mut y, &x, &w, false).expect("shapes fit");
    matmul::matmul_nt(&mut expected, &x_values, &w_values, dims, false);
    check("y", &y, &expected, k);

    for accumulate in [false, true] {
        let (mut dx, mut expected) = normal(backend, 5, [m, k], DType::Bf16);
        backend.matmul_nn(&mut dx, &dy, &w, accumulate).expect("shapes fit");
        matmul::matmul_nn(&mut expected, &dy_values, &w_values, dims, accumulate);
        check("dx", &dx, &expected, n);

        let (mut dw, mut expected) = normal(backend, 6, [n, k], out);
        backend.matmul_tn(&mut dw, &dy, &x, accumulate).expect("shapes fit");
        matmul::matmul_tn(&mut expected, &dy_values, &x_values, dims, accumulate);
        check("dw", &dw, &expected, m);
    }
}

#[test]
fn sizes_around_tiles_vectors_and_pairs() {
    let sizes = [1, 13, 14, 15, 31, 33, 49];
    for backend in backends() {
        for m in sizes {
            for n in sizes {
                for k in [1, 2, 15, 33] {
                    check_layouts(&backend, MatmulDims { m, n, k }, DType::F32);
                }
                check_layouts(&backend, MatmulDims { m, n, k: 31 }, DType::Bf16);
            }
        }
    }
}

#[test]
fn long_sums_and_several_tasks() {
    for backend in backends() {
        for out in [DType::F32, DType::Bf16] {
            for (m, n, k) in [(50, 34, 645), (950, 20, 18), (53, 420, 21), (641, 15, 49)] {
                check_layouts(&backend, MatmulDims { m, n, k }, out);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for isa in isas() {
        let [one, two, three] = [1, 2, 3].map(|threads| {
            let backend: &dyn Backend = &backend(isa, threads);
            let (x, w) = (normal(backend, 1, [99, 700], DType::Bf16).0, normal(backend, 2, [45, 700], DType::Bf16).0);
            let mut y = normal(backend, 3, [99, 45], DType::F32).0;
            backend.matmul_nt(&mut y, &x, &w, false).expect("shapes fit");
            wide(backend, &y)
        });
        assert!(one == two && one == three, "{isa}");
    }
}

/// Which also shows that pairs are multiplied at all: everything else keeps subnormal numbers.
#[test]
fn subnormal_factors_count_as_zero() {
    let (m, n, k) = (60, 17, 3);
    for (isa, is_paired) in isas().map(|isa| (isa, true)).chain([(Isa::from_name("portable").expect("there"), false)]) {
        let backend: &dyn Backend = &backend(isa, 1);
        let tensor = |value: f32, rows: usize, columns: usize| {
            backend.from_f32([rows, columns], DType::Bf16, &vec![value; rows * columns]).expect("small tensors fit")
        };
        let (tiny, large) = (2f32.powi(-130), 2f32.powi(126));
        let product = if is_paired { 0.0 } else { tiny * large };
        let zeros = |rows: usize, columns: usize| {
            backend.zeros(Shape::new(&[rows, columns]), DType::F32).expect("small tensors fit")
        };
        let (mut y, mut dw) = (zeros(m, n), zeros(n, k));
        backend.matmul_nt(&mut y, &tensor(tiny, m, k), &tensor(large, n, k), false).expect("shapes fit");
        assert!(wide(backend, &y).iter().all(|&y| y == f64::from(product) * k as f64), "{isa}");
        backend.matmul_tn(&mut dw, &tensor(tiny, m, n), &tensor(large, m, k), false).expect("shapes fit");
        assert!(wide(backend, &dw).iter().all(|&dw| dw == f64::from(product) * m as f64), "{isa}");
        let mut dx = tensor(1.0, m, k);
        backend.matmul_nn(&mut dx, &tensor(tiny, m, n), &tensor(large, n, k), false).expect("shapes fit");
        assert!(wide(backend, &dx).iter().all(|&dx| (dx == 0.0) == is_paired), "{isa}");
    }
}
