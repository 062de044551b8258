//! The backend against the naive references, for every number of threads and instruction set at hand; its memory; how it is
//! chosen.

mod golden;
mod large;
mod profile;
mod rounding;

use cpu::{CpuBackend, CpuConfig, Isa};
use tensor::{Backend, DType, MemoryStats, Shape};

fn backend(threads: usize, isa: Isa) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads: Some(threads), isa: Some(isa), ..CpuConfig::default() })
        .expect("threads start")
}

#[test]
fn ops_equal_their_references_on_one_thread() {
    testing::op_table::check_all(&backend(1, Isa::detect()));
}

#[test]
fn ops_equal_their_references_on_two_threads() {
    testing::op_table::check_all(&backend(2, Isa::detect()));
}

#[test]
fn ops_equal_their_references_on_three_threads() {
    testing::op_table::check_all(&backend(3, Isa::detect()));
}

#[test]
fn ops_equal_their_references_in_every_instruction_set() {
    for isa in Isa::available() {
        testing::op_table::check_all(&backend(2, isa));
    }
}

#[test]
fn backends_say_what_they_are() {
    let portable = Isa::from_name("portable").unwrap();
    assert_eq!(backend(1, portable).describe(), "cpu (portable, 1 thread)");
    assert_eq!(backend(3, portable).describe(), "cpu (portable, 3 threads)");
    let all_cores = CpuBackend::new(CpuConfig { threads: Some(0), ..CpuConfig::default() }).unwrap();
    assert_eq!(all_cores.num_threads(), std::thread::available_parallelism().unwrap().get());
}

#[test]
fn tensors_come_from_the_memory_of_earlier_ones() {
    let backend = backend(1, Isa::detect());
    let shape = Shape::new(&[1000, 300]);
    drop(backend.alloc(shape, DType::F32).unwrap());
    let before = backend.memory();
    for _ in 0..3 {
        let _tensor = backend.alloc(shape, DType::F32).unwrap();
        assert_eq!(backend.memory().cached_bytes, 0);
    }
    let after = backend.memory();
    assert_eq!(after.taken_bytes, before.taken_bytes + 3 * before.cached_bytes as u64);
    assert_eq!(MemoryStats { taken_bytes: before.taken_bytes, ..after }, before);
    backend.trim();
    assert_eq!(backend.memory().cached_bytes, 0);
}

#[test]
fn tensors_that_no_machine_holds_are_refused() {
    let backend = backend(1, Isa::detect());
    for dims in [[1 << 40, 1 << 18], [1 << 40, 1 << 40]] {
        let error = backend.alloc(Shape::new(&dims), DType::F32).expect_err("too large");
        assert!(matches!(error, tensor::Error::OutOfMemory { .. }), "{error}");
    }
}

#[test]
#[should_panic(expected = "an op writes a tensor whose buffer another tensor of a running op uses")]
fn an_output_that_is_an_input_too_is_a_bug_of_the_caller() {
    let backend = backend(1, Isa::detect());
    let x = backend.alloc(Shape::new(&[4, 4]), DType::F32).unwrap();
    let mut y = x.clone();
    let _ = backend.matmul_nt(&mut y, &x, &x, false);
}
