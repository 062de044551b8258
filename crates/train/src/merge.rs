//! Weights with the changes of their adapters worked in: what a model without adapters would need to compute the same.
//!
//! ```text
//! W' = W + scale * B A                       an adapter
//! W' = (W + scale * B A) * m / |.|           one with a magnitude m, row by row
//! ```
//!
//! Numbers: sums in f32 over pieces of rows, each element rounded once to the weight's dtype.
//! Ranks:   all make the same calls. A unit at a time is gathered, so no rank holds the whole model.

use std::ops::Range;
use std::sync::Arc;

use checkpoint::{CheckpointDir, TensorSink, TensorSpec};
use tensor::{AdapterSpec, DType, ParamId, ParamView, Phase, Shape, Tensor, UnitHost, UnitId};

use crate::store::STAGE_BYTES;
use crate::{ParamStore, Result};

/// The unit whose values are here.
type Visit = Option<(UnitId, Arc<[ParamView]>)>;

impl ParamStore {
    /// Writes the model's weights with all adapters worked in; ranks without a folder help to gather them.
    pub fn write_merged_weights(&mut self, dir: Option<&mut CheckpointDir>) -> Result<()> {
        let all: Vec<ParamId> = self.layout.base_params().collect();
        let specs: Vec<TensorSpec> = all.iter().map(|&id| self.merged_spec(id)).collect();
        let mut visit = Visit::None;
        match dir {
            Some(dir) => {
                let mut rest = all.iter();
                let mut fill = |_: &TensorSpec, sink: &mut TensorSink<'_>| -> Result<()> {
                    let id = *rest.next().expect("every tensor is written once, in order");
                    let views = self.visit(&mut visit, id)?;
                    self.each_merged_piece(&views, id, &mut |bytes| Ok(sink.write(bytes)?))
                };
                dir.write_weights(&specs, &mut fill)?;
            }
            None => all.iter().try_for_each(|&id| self.visit(&mut visit, id).map(|_| ()))?,
        }
        self.end_visit(&mut visit)
    }

    /// Sets every magnitude to what changes nothing: the length of its weight's rows as the adapter has them.
    pub(crate) fn init_magnitudes(&mut self) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        let mut visit = Visit::None;
        for adapter in &layout.adapters {
            let Some(magnitude) = adapter.magnitude else { continue };
            let views = self.visit(&mut visit, adapter.weight)?;
            let norms = self.backend.to_f32(&self.row_norms(&views, adapter)?)?;
            self.write_values(magnitude, &norms)?;
        }
        self.end_visit(&mut visit)
    }

    fn merged_spec(&self, id: ParamId) -> TensorSpec {
        let param = self.layout.param(id);
        TensorSpec { name: param.name.clone(), dtype: self.dtype(), shape: param.shape.dims().to_vec() }
    }

    /// The values of the unit that owns a parameter; gives up those of another one.
    fn visit(&mut self, visit: &mut Visit, id: ParamId) -> Result<Arc<[ParamView]>> {
        let unit = self.groups[self.params[id.0 as usize].group.0].unit;
        if let Some((_, views)) = visit.as_ref().filter(|(here, _)| *here == unit) {
            return Ok(Arc::clone(views));
        }
        self.end_visit(visit)?;
        let views = self.enter(unit, Phase::Inference)?;
        *visit = Some((unit, Arc::clone(&views)));
        Ok(views)
    }

    fn end_visit(&mut self, visit: &mut Visit) -> Result<()> {
        if let Some((unit, _)) = visit.take() {
            self.leave(unit, Phase::Inference)?;
        }
        Ok(())
    }

    /// The bytes of a weight with its changes, in pieces of rows, in order.
    fn each_merged_piece(
        &self,
        views: &[ParamView],
        id: ParamId,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let weight = value_of(views, id);
        let (rows, columns) = weight.shape().rows_cols();
        let weight = weight.reshape([rows, columns])?;
        let changes: Vec<Change> = self
            .layout
            .adapters
            .iter()
            .filter(|adapter| adapter.weight == id)
            .map(|adapter| self.change(views, adapter))
            .collect::<Result<_>>()?;
        let step = (STAGE_BYTES / (4 * columns.max(1))).max(1);
        let mut stage = Vec::new();
        for start in (0..rows).step_by(step) {
            let piece = start..(start + step).min(rows);
            let mut part = weight.rows(piece.clone())?;
            if changes.iter().any(|change| !overlap(&change.rows, &piece).is_empty()) {
                part = self.changed(&part, &piece, &changes)?;
            }
            stage.resize(part.len_bytes(), 0);
            self.backend.download(&mut stage, &part)?;
            take(&stage)?;
        }
        Ok(())
    }

    /// The rows `piece` of a weight with the changes that concern them.
    fn changed(&self, part: &Tensor, piece: &Range<usize>, changes: &[Change]) -> Result<Tensor> {
        let columns = part.shape().rows_cols().1;
        let mut sum = self.backend.alloc(part.shape(), DType::F32)?;
        self.backend.copy(&mut sum, part)?;
        let mut factors = vec![1.0f32; piece.len()];
        for change in changes {
            let rows = overlap(&change.rows, piece);
            if rows.is_empty() {
                continue;
            }
            let (in_piece, in_change) = (shifted(&rows, piece.start), shifted(&rows, change.rows.start));
            let b = change.b.rows(in_change.clone())?;
            self.backend.matmul_nn(&mut sum.rows(in_piece.clone())?, &b, &change.a, true)?;
            if let Some(of_rows) = &change.factors {
                factors[in_piece].copy_from_slice(&of_rows[in_change]);
            }
        }
        let mut values = self.backend.to_f32(&sum)?;
        for (row, factor) in values.chunks_mut(columns).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(self.backend.from_f32(part.shape(), part.dtype(), &values)?)
    }

    /// An adapter in f32, with its scale in B.
    fn change(&self, views: &[ParamView], adapter: &AdapterSpec) -> Result<Change> {
        let in_f32 = |id| -> Result<Tensor> {
            let value = value_of(views, id);
            let mut copy = self.backend.alloc(value.shape(), DType::F32)?;
            self.backend.copy(&mut copy, value)?;
            Ok(copy)
        };
        let (a, mut b) = (in_f32(adapter.a)?, in_f32(adapter.b)?);
        self.backend.scale_in_place(&mut b, adapter.scale)?;
        let factors = match adapter.magnitude {
            None => None,
            Some(magnitude) => {
                let norms = self.backend.to_f32(&self.row_norms(views, adapter)?)?;
                let lengths = self.backend.to_f32(value_of(views, magnitude))?;
                let factor = |(length, norm): (f32, f32)| if norm == 0.0 { 0.0 } else { length / norm };
                Some(lengths.into_iter().zip(norms).map(factor).collect())
            }
        };
        Ok(Change { rows: adapter.rows.clone(), a, b, factors })
    }

    /// The lengths of the rows of a weight as an adapter changes them: f32.
    fn row_norms(&self, views: &[ParamView], adapter: &AdapterSpec) -> Result<Tensor> {
        let weight = value_of(views, adapter.weight).rows(adapter.rows.clone())?;
        let mut norms = self.backend.alloc(Shape::from([adapter.rows.len()]), DType::F32)?;
        let (a, b) = (value_of(views, adapter.a), value_of(views, adapter.b));
        self.backend.dora_norm(&mut norms, &weight, a, b, adapter.scale)?;
        Ok(norms)
    }
}

/// What an adapter adds to some rows of a weight.
struct Change {
    rows: Range<usize>,
    /// A (R, K), f32.
    a: Tensor,
    /// scale * B (rows, R), f32.
    b: Tensor,
    /// What each row is multiplied by afterwards.
    factors: Option<Vec<f32>>,
}

fn value_of(views: &[ParamView], id: ParamId) -> &Tensor {
    &views.iter().find(|view| view.id == id).expect("an adapter belongs to the unit of its weight").tensor
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn shifted(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}
