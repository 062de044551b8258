//! The instruction set that kernels run with, chosen once when a backend starts.
//!
//! Kernels are written once, as plain loops over slices; [`per_isa`] compiles them for every instruction set and calls the
//! version that the backend's [`Isa`] names. Loops that the compiler cannot vectorise well enough (the tile of a matrix
//! product) are written with intrinsics beside their portable form, in `tile/` and `matmul/vectors.rs`.

use std::fmt;

use crate::Error;

/// An instruction set that this processor has.
///
/// A value exists only for what was detected, which is what makes calls of functions compiled for it sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whatever the build targets.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL beside AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with products of bf16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// NEON, which every 64-bit Arm processor has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with products of bf16 pairs (`bfdot`, FEAT_BF16).
    #[cfg(target_arch = "aarch64")]
    NeonBf16,
    /// Portable but for products of bf16 pairs, which plain code computes as AVX-512 BF16 would.
    #[cfg(test)]
    EmulatedBf16,
}

impl Isa {
    /// The environment variable that overrides the choice.
    pub const VARIABLE: &'static str = "FERROTUNE_CPU_ISA";
    /// The values that the variable takes.
    pub const NAMES: [&'static str; 6] = ["portable", "avx2", "avx512", "avx512bf16", "neon", "neonbf16"];

    /// For tests of the products of bf16 pairs on any processor.
    #[cfg(test)]
    pub(crate) const EMULATED_BF16: Self = Self(Kind::EmulatedBf16);

    /// The best that this processor has.
    pub fn detect() -> Self {
        *Self::available().last().expect("the portable form is always there")
    }

    /// All that this processor has, from the plainest to the best.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            all.push(Self(Kind::Avx2));
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if has_avx512 {
                all.push(Self(Kind::Avx512));
                if is_x86_feature_detected!("avx512bf16") {
                    all.push(Self(Kind::Avx512Bf16));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Self(Kind::Neon));
            if std::arch::is_aarch64_feature_detected!("bf16") {
                all.push(Self(Kind::NeonBf16));
            }
        }
        all
    }

    /// The instruction set of this name. `Error::UnknownIsa` for another word, `Error::MissingIsa` if the processor lacks it.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        if !Self::NAMES.contains(&name) {
            return Err(Error::UnknownIsa { found: name.to_owned() });
        }
        let available = Self::available();
        let found = available.iter().copied().find(|isa| isa.name() == name);
        found.ok_or_else(|| Error::MissingIsa {
            name: name.to_owned(),
            available: available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join("`, `"),
        })
    }

    /// What [`Isa::VARIABLE`] asks for, else the best that there is.
    pub fn from_env() -> Result<Self, Error> {
        match std::env::var_os(Self::VARIABLE) {
            None => Ok(Self::detect()),
            Some(value) => Self::from_name(&value.to_string_lossy()),
        }
    }

    /// The word that the environment variable takes for it.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonBf16 => "neonbf16",
            #[cfg(test)]
            Kind::EmulatedBf16 => "emulated",
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }

    /// Whether products of bf16 factors are taken pair by pair, without widening.
    pub(crate) const fn multiplies_pairs(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => true,
            #[cfg(target_arch = "aarch64")]
            Kind::NeonBf16 => true,
            #[cfg(test)]
            Kind::EmulatedBf16 => true,
            _ => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.name() {
            "avx2" => "AVX2",
            "avx512" => "AVX-512",
            "avx512bf16" => "AVX-512 BF16",
            "neon" => "NEON",
            "neonbf16" => "NEON BF16",
            _ => "portable",
        })
    }
}

/// Compiles a function for every instruction set and lets its first argument, an [`Isa`], choose.
///
/// The body sees the constant `FMA`: whether fused multiply-add is one instruction there (see [`crate::numbers::mul_add`]).
/// Everything it calls in its loops must be `#[inline(always)]`, so that it is compiled along; closures given to iterators may
/// not be.
macro_rules! per_isa {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<const FMA: bool $(, $generic:ident : $bound:path)* $(,)?>(
            $($arg:ident : $ty:ty),* $(,)?
        ) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "functions of an instruction set are called where it was detected")
        )]
        $vis fn $name<$($generic: $bound),*>(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::extra_unused_type_parameters, reason = "not every kernel multiplies and adds")]
            fn body<const FMA: bool $(, $generic: $bound)*>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($generic: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<true $(, $generic)*>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512<$($generic: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<true $(, $generic)*>($($arg),*)
            }

            #[cfg(target_arch = "aarch64")]
            fn neon<$($generic: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                body::<true $(, $generic)*>($($arg),*)
            }

            match isa.kind() {
                $crate::isa::Kind::Portable => body::<false $(, $generic)*>($($arg),*),
                // SAFETY: an `Isa` of this kind exists only where AVX2 and FMA were detected.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Kind::Avx2 => unsafe { avx2::<$($generic),*>($($arg),*) },
                // SAFETY: an `Isa` of these kinds exists only where these parts of AVX-512 were detected.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Kind::Avx512 | $crate::isa::Kind::Avx512Bf16 => unsafe {
                    avx512::<$($generic),*>($($arg),*)
                },
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Kind::Neon | $crate::isa::Kind::NeonBf16 => neon::<$($generic),*>($($arg),*),
                #[cfg(test)]
                $crate::isa::Kind::EmulatedBf16 => body::<false $(, $generic)*>($($arg),*),
            }
        }
    };
}
pub(crate) use per_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_available_sets_lead_back_to_them() {
        for isa in Isa::available() {
            assert_eq!(Isa::from_name(isa.name()).unwrap(), isa);
        }
        assert!(Isa::available().contains(&Isa::detect()));
    }

    #[test]
    fn unknown_and_missing_names_are_told_apart() {
        let unknown = Isa::from_name("sse9").unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "unknown instruction set `sse9` in `FERROTUNE_CPU_ISA`: expected one of `portable`, `avx2`, `avx512`, `avx512bf16`, `neon`, `neonbf16`"
        );
        let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        let missing = Isa::from_name(absent).unwrap_err();
        assert!(matches!(missing, Error::MissingIsa { .. }), "{missing}");
        assert_eq!(missing.hint().unwrap(), "unset `FERROTUNE_CPU_ISA` to use the best that this processor has");
    }
}
