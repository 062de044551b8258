//! Rotary frequencies.
//!
//! Source: Su et al. 2021, arXiv:2104.09864; the stretching is that of Llama 3.1's `rope_type: llama3`.

use std::f64::consts::TAU;

use super::DecoderConfig;

/// H/2 angular frequencies: theta^(-2i/H), stretched where the config says so.
pub(super) fn inverse_frequencies(config: &DecoderConfig) -> Vec<f32> {
    let half = config.head_dim / 2;
    (0..half)
        .map(|i| {
            let freq = config.rope_theta.powf(-(2.0 * i as f64) / config.head_dim as f64);
            let Some(scaling) = config.rope_scaling else {
                return freq as f32;
            };
            let wavelength = TAU / freq;
            let old_context = scaling.original_max_position_embeddings as f64;
            let (low, high) = (scaling.low_freq_factor, scaling.high_freq_factor);
            let stretched = if wavelength < old_context / high {
                freq
            } else if wavelength > old_context / low {
                freq / scaling.factor
            } else {
                let smooth = (old_context / wavelength - low) / (high - low);
                (1.0 - smooth) * freq / scaling.factor + smooth * freq
            };
            stretched as f32
        })
        .collect()
}
