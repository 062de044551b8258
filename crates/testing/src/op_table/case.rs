//! One case of a table: tensors with guard bands, the call, and what is expected of it.

use tensor::{Backend, Buffer, DType, Device, Error, Result, Tensor};

use super::nmse_bound;
use crate::compare::{Tolerance, compare, round_to};
use crate::random;

/// Every byte around a view and of an output to overwrite: NaN in both floating-point types, -1 in i32.
const GUARD: u8 = 0xff;

/// Elements of a band, at least; odd, so that most views start off any alignment but their own element's.
const BAND_ELEMENTS: usize = 37;

/// A running table: the case at hand and the failures so far.
pub(super) struct Table<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) dtype: DType,
    op: &'static str,
    case: String,
    stream: u64,
    failures: Vec<String>,
}

/// Runs the cases of an op. Panics: with all cases that fail, if any does.
pub(super) fn table(op: &'static str, backend: &dyn Backend, dtype: DType, cases: impl FnOnce(&mut Table<'_>)) {
    let (case, failures) = (String::new(), Vec::new());
    let mut table = Table { backend, dtype, op, case, stream: 0, failures };
    cases(&mut table);
    table.case.clear();
    let failures = std::mem::take(&mut table.failures);
    assert!(
        failures.is_empty(),
        "{op} in {dtype} on {}: {} failures\n  {}",
        backend.describe(),
        failures.len(),
        failures.join("\n  ")
    );
}

impl Drop for Table<'_> {
    /// Says which case was running when a backend panics.
    #[expect(clippy::print_stderr, reason = "the panic itself goes there too")]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.case.is_empty() {
            eprintln!("{} in {}, case {}: stopped by a panic", self.op, self.dtype, self.case);
        }
    }
}

/// A floating-point input and its values as the tensor holds them.
pub(super) struct Input {
    pub(super) tensor: Tensor,
    pub(super) values: Vec<f64>,
}

/// What an op is to leave in one of its outputs.
pub(super) struct Output {
    name: &'static str,
    shape: Vec<usize>,
    dtype: DType,
    start: Option<Vec<f64>>,
    expected: Expected,
}

/// Says what is wrong with values.
type Judge = Box<dyn Fn(&[f64]) -> Result<(), String>>;

/// What is right for an output.
enum Expected {
    /// About these values.
    About(Vec<f64>, Tolerance),
    /// Whatever this finds nothing wrong with.
    Judged(Judge),
}

impl Expected {
    fn check(&self, found: &[f64]) -> Result<(), String> {
        match self {
            Self::About(values, tolerance) => compare(found, values, *tolerance).map_err(|m| m.to_string()),
            Self::Judged(judge) => judge(found),
        }
    }
}

impl Output {
    /// An output that is overwritten with about `expected`, within [`nmse_bound`].
    pub(super) fn new(name: &'static str, shape: &[usize], dtype: DType, expected: &[f64]) -> Self {
        let tolerance = Tolerance::nmse(nmse_bound(dtype, expected.len()));
        let expected = Expected::About(round_to(dtype, expected), tolerance);
        Self { name, shape: shape.to_vec(), dtype, start: None, expected }
    }

    /// An output that holds something of which `judge` finds nothing wrong.
    pub(super) fn judged(
        name: &'static str,
        shape: &[usize],
        dtype: DType,
        judge: impl Fn(&[f64]) -> Result<(), String> + 'static,
    ) -> Self {
        Self { name, shape: shape.to_vec(), dtype, start: None, expected: Expected::Judged(Box::new(judge)) }
    }

    /// What the output holds before the call; without this it starts as NaN.
    pub(super) fn starting_at(self, values: &[f64]) -> Self {
        Self { start: Some(values.to_vec()), ..self }
    }

    /// Allows an NMSE of `nmse`, where an op has a bound of its own.
    pub(super) fn within(self, nmse: f64) -> Self {
        self.with_tolerance(|tolerance| Tolerance { nmse, ..tolerance })
    }

    /// Measures errors against at least `floor`, where terms of about that size cancel.
    pub(super) fn floor(self, floor: f64) -> Self {
        self.with_tolerance(|tolerance| tolerance.with_floor(floor))
    }

    fn with_tolerance(mut self, change: impl Fn(Tolerance) -> Tolerance) -> Self {
        if let Expected::About(_, tolerance) = &mut self.expected {
            *tolerance = change(*tolerance);
        }
        self
    }
}

/// The error that a call which cannot work is to give.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wrong {
    /// `Error::Shape` about this argument.
    Shape(&'static str),
    /// `Error::DType` about this argument.
    DType(&'static str),
    /// `Error::Index` about this index.
    Index(i64),
    /// `Error::WrongDevice`.
    Device,
}

impl Wrong {
    fn is(self, error: &Error) -> bool {
        match (self, error) {
            (Self::Shape(expected), Error::Shape { name, .. }) | (Self::DType(expected), Error::DType { name, .. }) => {
                *name == expected
            }
            (Self::Index(expected), Error::Index { index, .. }) => *index == expected,
            (Self::Device, Error::WrongDevice { .. }) => true,
            _ => false,
        }
    }
}

/// A view of rows in the middle of a larger tensor.
pub(super) struct Guarded {
    whole: Tensor,
    pub(super) view: Tensor,
}

impl Guarded {
    /// The view's bytes; `Err` if a byte around it changed.
    pub(super) fn bytes(&self, backend: &dyn Backend) -> Result<Vec<u8>, String> {
        let mut all = self.all_bytes(backend);
        let (start, len) = (self.view.offset_bytes() - self.whole.offset_bytes(), self.view.len_bytes());
        let outside = |&at: &usize| all[at] != GUARD && !(start..start + len).contains(&at);
        if let Some(at) = (0..all.len()).find(outside) {
            let distance = at as i64 - start as i64;
            return Err(format!("wrote outside of its rows, at byte {distance} of {len}"));
        }
        Ok(all.drain(start..start + len).collect())
    }

    fn all_bytes(&self, backend: &dyn Backend) -> Vec<u8> {
        let mut all = vec![0; self.whole.len_bytes()];
        backend.download(&mut all, &self.whole).expect("a tensor downloads into as many bytes");
        all
    }
}

impl Table<'_> {
    /// Begins a case; its random numbers do not depend on the cases before it.
    pub(super) fn case(&mut self, name: impl Into<String>) {
        self.case = name.into();
        self.stream = 0;
    }

    /// Records that the case fails.
    pub(super) fn fail(&mut self, why: impl AsRef<str>) {
        self.failures.push(format!("{}: {}", self.case, why.as_ref()));
    }

    /// Records that the case fails unless `holds`.
    pub(super) fn check(&mut self, holds: bool, why: &str) {
        if !holds {
            self.fail(why);
        }
    }

    /// Normal numbers of mean 0, rounded to the table's dtype.
    pub(super) fn values(&mut self, len: usize, std_dev: f64) -> Vec<f64> {
        self.values_of(self.dtype, len, std_dev)
    }

    /// Normal numbers of mean 0, rounded to `dtype`.
    pub(super) fn values_of(&mut self, dtype: DType, len: usize, std_dev: f64) -> Vec<f64> {
        self.stream += 1;
        round_to(dtype, &random::normal(self.stream, len, std_dev))
    }

    /// Random integers in `0..bound`.
    pub(super) fn indices(&mut self, len: usize, bound: usize) -> Vec<i32> {
        self.stream += 1;
        random::indices(self.stream, len, bound)
    }

    /// A random input of the table's dtype.
    pub(super) fn normal(&mut self, shape: &[usize], std_dev: f64) -> Input {
        let values = self.values(shape.iter().product(), std_dev);
        self.floats(shape, self.dtype, &values)
    }

    /// An input with these values, rounded to `dtype`.
    pub(super) fn floats(&self, shape: &[usize], dtype: DType, values: &[f64]) -> Input {
        let tensor = self.guarded(shape, dtype, Some(values)).view;
        Input { tensor, values: round_to(dtype, values) }
    }

    /// An integer input.
    pub(super) fn ints(&self, shape: &[usize], values: &[i32]) -> Tensor {
        let values: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
        self.guarded(shape, DType::I32, Some(&values)).view
    }

    /// An input of bytes.
    pub(super) fn bytes(&self, bytes: &[u8]) -> Tensor {
        let values: Vec<f64> = bytes.iter().map(|&byte| f64::from(byte)).collect();
        self.guarded(&[bytes.len()], DType::U8, Some(&values)).view
    }

    /// An input for calls that are refused before anything is read.
    pub(super) fn any(&self, shape: &[usize], dtype: DType) -> Tensor {
        let zeros = vec![0.0; shape.iter().product()];
        self.guarded(shape, dtype, Some(&zeros)).view
    }

    /// A tensor that lives on a device which no backend has.
    pub(super) fn elsewhere(&self, shape: &[usize], dtype: DType) -> Tensor {
        let shape = tensor::Shape::new(shape);
        let buffer = ForeignBuffer { device: Device { index: usize::MAX, ..self.backend.device() }, len_bytes: 4096 };
        Tensor::from_buffer(std::sync::Arc::new(buffer), 0, shape, dtype)
    }

    /// Rows in the middle of a larger tensor; NaN without values.
    pub(super) fn guarded(&self, shape: &[usize], dtype: DType, values: Option<&[f64]>) -> Guarded {
        let row_elements: usize = shape[1..].iter().product();
        let band_rows = BAND_ELEMENTS.div_ceil(row_elements.max(1));
        let mut whole_shape = shape.to_vec();
        whole_shape[0] += 2 * band_rows;
        let mut whole = self.backend.alloc(tensor::Shape::new(&whole_shape), dtype).expect("a small tensor fits");
        let mut bytes = vec![GUARD; whole.len_bytes()];
        if let Some(values) = values {
            let inside = to_bytes(dtype, values);
            bytes[band_rows * row_elements * dtype.size_bytes()..][..inside.len()].copy_from_slice(&inside);
        }
        self.backend.upload(&mut whole, &bytes).expect("a tensor uploads from as many bytes");
        let view = whole.rows(band_rows..band_rows + shape[0]).expect("the rows between the bands exist");
        Guarded { whole, view }
    }

    /// Runs a call twice on fresh outputs: bands untouched, values as expected, the same bits both times.
    pub(super) fn run<const N: usize>(&mut self, outputs: &[Output; N], call: impl Fn(&mut [Tensor; N]) -> Result<()>) {
        let mut first: Option<Vec<Vec<u8>>> = None;
        for _ in 0..2 {
            let guarded = outputs.each_ref().map(|o| self.guarded(&o.shape, o.dtype, o.start.as_deref()));
            let result = call(&mut guarded.each_ref().map(|g| g.view.clone())).and_then(|()| self.backend.flush());
            if let Err(error) = result {
                return self.fail(format!("refused: {error}"));
            }
            let mut bits = Vec::new();
            for (output, guarded) in outputs.iter().zip(&guarded) {
                match guarded.bytes(self.backend) {
                    Ok(bytes) => bits.push(bytes),
                    Err(why) => return self.fail(format!("{}: {why}", output.name)),
                }
            }
            match &first {
                Some(first) => self.check(*first == bits, "two equal calls gave different bits"),
                None => {
                    for (output, bytes) in outputs.iter().zip(&bits) {
                        let found = from_bytes(output.dtype, bytes);
                        if let Err(why) = output.expected.check(&found) {
                            self.fail(format!("{}: {why}", output.name));
                        }
                    }
                    first = Some(bits);
                }
            }
        }
    }

    /// Makes a call that cannot work: the expected error, and every byte of the outputs as it was.
    pub(super) fn refuse<const N: usize>(
        &mut self,
        wrong: Wrong,
        outputs: [(&[usize], DType); N],
        call: impl FnOnce(&mut [Tensor; N]) -> Result<()>,
    ) {
        self.case(format!("refuses wrong {wrong:?}"));
        let guarded = outputs.map(|(shape, dtype)| self.guarded(shape, dtype, None));
        match call(&mut guarded.each_ref().map(|g| g.view.clone())).and_then(|()| self.backend.flush()) {
            Ok(()) => self.fail("accepted"),
            Err(error) if wrong.is(&error) => {}
            Err(error) => self.fail(format!("expected an error about {wrong:?}, found `{error}`")),
        }
        let touched = guarded.iter().any(|g| g.all_bytes(self.backend).iter().any(|&byte| byte != GUARD));
        self.check(!touched, "changed an output and failed");
    }

    /// The floating-point dtype that the table does not run in.
    pub(super) fn other_dtype(&self) -> DType {
        if self.dtype == DType::F32 { DType::Bf16 } else { DType::F32 }
    }

    /// The dtypes of a gradient of a parameter, or of another output that may be f32 over bf16 inputs.
    pub(super) fn output_dtypes(&self) -> &'static [DType] {
        if self.dtype == DType::F32 { &[DType::F32] } else { &[DType::Bf16, DType::F32] }
    }
}

/// Memory that only claims to be somewhere.
#[derive(Debug)]
struct ForeignBuffer {
    device: Device,
    len_bytes: usize,
}

impl Buffer for ForeignBuffer {
    fn device(&self) -> Device {
        self.device
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Values in the memory format of `dtype`, rounded.
pub(super) fn to_bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|&v| (v as f32).to_ne_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v as f32).to_ne_bytes()).collect(),
        DType::I32 => values.iter().flat_map(|&v| (v as i32).to_ne_bytes()).collect(),
        DType::U8 => values.iter().map(|&v| v as u8).collect(),
    }
}

/// Values out of the memory format of `dtype`.
pub(super) fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let (pairs, fours) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
    match dtype {
        DType::F32 => fours.iter().map(|&b| f64::from(f32::from_ne_bytes(b))).collect(),
        DType::Bf16 => pairs.iter().map(|&b| half::bf16::from_ne_bytes(b).to_f64()).collect(),
        DType::I32 => fours.iter().map(|&b| f64::from(i32::from_ne_bytes(b))).collect(),
        DType::U8 => bytes.iter().map(|&b| f64::from(b)).collect(),
    }
}
