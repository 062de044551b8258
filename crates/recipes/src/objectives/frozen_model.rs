//! A whole model beside the one that is trained, which only answers. Ranks share it as they share the other one.

use std::sync::Arc;

use checkpoint::WeightSource;
use dist::Mesh;
use models::Decoder;
use tensor::{Backend, Cx, DType};
use train::{Files, ParamStore, Policy};

use crate::Result;

/// The model and its weights.
#[derive(Debug)]
pub struct FrozenModel {
    pub(super) model: Arc<Decoder>,
    pub(super) store: ParamStore,
}

impl FrozenModel {
    /// This rank's part of the model; without `weights` its values are undefined.
    pub(super) fn new(
        model: Arc<Decoder>,
        mesh: &Mesh,
        backend: &Arc<dyn Backend>,
        dtype: DType,
        files: Option<Files>,
        weights: Option<&WeightSource>,
    ) -> Result<Self> {
        let layout = Arc::new(model.layout().clone().frozen());
        let mut store = ParamStore::on_mesh(Arc::clone(backend), layout, dtype, Policy::default(), mesh, files)?;
        if let Some(weights) = weights {
            store.load_weights(weights)?;
            weights.release();
        }
        Ok(Self { model, store })
    }

    /// What it says to something, without a tape.
    pub(super) fn ask<T>(
        &mut self,
        backend: &dyn Backend,
        question: impl FnOnce(&Decoder, &mut Cx<'_>) -> tensor::Result<T>,
    ) -> Result<T> {
        Ok(question(&self.model, &mut Cx::inference(backend, &mut self.store))?)
    }
}
