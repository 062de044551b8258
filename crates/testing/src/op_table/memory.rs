//! Tables of memory: allocation, transfers, copies with a cast, and what is counted.

use tensor::{Backend, DType, Error, Shape};

use super::case::{Output, Table, Wrong, from_bytes, table, to_bytes};

const SHAPES: &[&[usize]] = &[&[0], &[1], &[17, 3], &[3, 0], &[2, 3, 5, 7], &[129, 65]];

/// Allocation, transfers, zeros, counters, scalars.
pub fn check_memory(backend: &dyn Backend, dtype: DType) {
    table("memory", backend, dtype, |t| {
        t.case("describe");
        t.check(!backend.describe().is_empty(), "a backend has no name");
        for &shape in SHAPES {
            t.case(format!("{shape:?}"));
            transfer(t, shape);
            let values = t.values(shape.iter().product(), 1.0);
            let zeros = vec![0.0; values.len()];
            let dst = Output::new("dst", shape, dtype, &zeros).within(0.0).starting_at(&values);
            t.run(&[dst], |[dst]| backend.fill_zero(dst));
        }
        counters(t);
        scalars(t);
        let foreign = t.elsewhere(&[3], dtype);
        t.refuse(Wrong::Device, [], |[]| backend.fill_zero(&mut foreign.clone()));
        t.refuse(Wrong::Device, [], |[]| backend.upload(&mut foreign.clone(), &vec![0; 3 * dtype.size_bytes()]));
        t.refuse(Wrong::Device, [], |[]| backend.download(&mut vec![0; 3 * dtype.size_bytes()], &foreign));
    });
}

/// Bytes come back as they were sent, and only as many as there are.
fn transfer(t: &mut Table<'_>, shape: &[usize]) {
    let backend = t.backend;
    let mut tensor = match backend.alloc(Shape::new(shape), t.dtype) {
        Ok(tensor) => tensor,
        Err(error) => return t.fail(format!("alloc: {error}")),
    };
    t.check(tensor.dims() == shape && tensor.dtype() == t.dtype, "alloc gave another shape or dtype");
    t.check(tensor.device() == backend.device(), "alloc gave a tensor on another device");
    let sent: Vec<u8> = (0..tensor.len_bytes()).map(|i| (i * 31 + 7) as u8).collect();
    let mut received = vec![0; sent.len()];
    let result = backend.upload(&mut tensor, &sent).and_then(|()| backend.download(&mut received, &tensor));
    t.check(result == Ok(()) && received == sent, "bytes did not come back as they were sent");
    let long = vec![0; sent.len() + 1];
    t.check(matches!(backend.upload(&mut tensor, &long), Err(Error::Shape { .. })), "took too many bytes");
    let result = backend.download(&mut vec![0; sent.len() + 1], &tensor);
    t.check(matches!(result, Err(Error::Shape { .. })), "gave more bytes than there are");
}

/// Live bytes rise with an allocation and fall when the last view of it is gone.
fn counters(t: &mut Table<'_>) {
    t.case("memory counters");
    let backend = t.backend;
    backend.trim();
    let before = backend.memory();
    let tensor = backend.alloc(Shape::new(&[1000, 33]), t.dtype).expect("a small tensor fits");
    let (bytes, view) = (tensor.len_bytes(), tensor.rows(3..5).expect("the rows exist"));
    let during = backend.memory();
    t.check(during.live_bytes >= before.live_bytes + bytes, "live bytes did not rise");
    t.check(during.peak_live_bytes >= during.live_bytes, "the peak is below what is live");
    drop(tensor);
    t.check(backend.memory().live_bytes == during.live_bytes, "live bytes fell though a view is alive");
    drop(view);
    let after = backend.memory();
    t.check(after.live_bytes == before.live_bytes, "live bytes did not fall back");
    t.check(after.peak_live_bytes >= during.live_bytes, "the peak fell");
    backend.trim();
    t.check(backend.memory().cached_bytes == 0, "trim left cached bytes");
}

fn scalars(t: &mut Table<'_>) {
    t.case("read_scalar");
    let backend = t.backend;
    let x = t.floats(&[1], DType::F32, &[-2.5]).tensor;
    t.check(backend.read_scalar(&x) == Ok(-2.5), "another value came back");
    let (two, int) = (t.any(&[2], DType::F32), t.any(&[1], DType::I32));
    t.refuse(Wrong::Shape("x"), [], |[]| backend.read_scalar(&two).map(drop));
    t.refuse(Wrong::DType("x"), [], |[]| backend.read_scalar(&int).map(drop));
}

/// `dst = src`, into the same dtype and into the other one.
pub fn check_copy(backend: &dyn Backend, dtype: DType) {
    table("copy", backend, dtype, |t| {
        for into in [DType::F32, DType::Bf16] {
            for &shape in SHAPES {
                t.case(format!("{shape:?} into {into}"));
                let src = t.normal(shape, 1.0);
                let dst = Output::new("dst", shape, into, &src.values).within(0.0);
                t.run(&[dst], |[dst]| backend.copy(dst, &src.tensor));
            }
            t.case(format!("special values into {into}"));
            let halfway = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.0 - 1.0 / 256.0, 1.0 + 1.0 / 256.0 + 1e-6];
            let edges = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::from(f32::MAX), 1e-40, -0.0, 3.39e38];
            let src = t.floats(&[11], dtype, &[&halfway[..], &edges].concat());
            let dst = Output::new("dst", &[11], into, &src.values).within(0.0);
            t.run(&[dst], |[dst]| backend.copy(dst, &src.tensor));
        }
        t.case("integers");
        let (values, shape) = ([i32::MIN, -1, 0, 7, i32::MAX], [5]);
        let src = t.ints(&shape, &values);
        let expected: Vec<f64> = values.map(f64::from).to_vec();
        t.run(&[Output::new("dst", &shape, DType::I32, &expected)], |[dst]| backend.copy(dst, &src));

        t.case("a NaN whose upper half alone looks infinite");
        let src = t.guarded(&[1], DType::F32, None);
        let (mut view, mut dst) = (src.view.clone(), t.any(&[1], DType::Bf16));
        let mut bytes = to_bytes(DType::Bf16, &[0.0]);
        let result = backend
            .upload(&mut view, &0x7f80_0001_u32.to_ne_bytes())
            .and_then(|()| backend.copy(&mut dst, &view))
            .and_then(|()| backend.download(&mut bytes, &dst));
        t.check(result == Ok(()) && from_bytes(DType::Bf16, &bytes)[0].is_nan(), "it became a number");

        let (src, int) = (t.any(&[3, 4], dtype), t.any(&[3, 4], DType::I32));
        t.refuse(Wrong::Shape("dst"), [(&[4, 3], dtype)], |[dst]| backend.copy(dst, &src));
        t.refuse(Wrong::DType("dst"), [(&[3, 4], DType::I32)], |[dst]| backend.copy(dst, &src));
        t.refuse(Wrong::DType("dst"), [(&[3, 4], dtype)], |[dst]| backend.copy(dst, &int));
    });
}
