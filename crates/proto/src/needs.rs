//! What a saved machine needs of the host it goes on on.
//!
//! A guest has looked at its processor and chosen its code by it, so it goes on only where the same model has at
//! least the same features. The monitor says what a machine needs when it is written, and what it could give here; the
//! node compares the two before a state is moved and before it is restored. Files need none of this.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What a saved machine needs; or what a host gives, which is what a machine that boots there would need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Needs {
    /// Version of the files that a monitor writes.
    pub format: u32,
    /// Version of the messages that its agent speaks: [`crate::VERSION`].
    pub agent: u32,
    /// What its processor must be.
    pub processor: Processor,
}

/// A processor, as a guest sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Processor {
    /// `AuthenticAMD`, `GenuineIntel`.
    pub vendor: String,
    /// Family, model and stepping, as CPUID says them.
    pub signature: u32,
    /// Bits of features, by the CPUID register that has them: `LEAF.INDEX.REGISTER`, the leaf in hex.
    pub features: BTreeMap<String, u32>,
}

/// Why a machine cannot go on here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incompatible {
    /// Files of another version.
    Format {
        /// Of the files.
        saved: u32,
        /// Of this host's monitor.
        here: u32,
    },
    /// An agent of another version.
    Agent {
        /// In the machine.
        saved: u32,
        /// As this host speaks.
        here: u32,
    },
    /// Another processor model.
    Model {
        /// Vendor and signature.
        saved: String,
        /// Likewise.
        here: String,
    },
    /// Something that the guest may already use is missing.
    Features {
        /// CPUID register.
        register: String,
        /// Bits.
        missing: u32,
    },
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format { saved, here } => {
                write!(
                    f,
                    "its files have version {saved} and the monitor here reads version {here}"
                )
            }
            Self::Agent { saved, here } => {
                write!(f, "its agent speaks version {saved} and this host speaks version {here}")
            }
            Self::Model { saved, here } => {
                write!(f, "it was saved on processor {saved} and the one here is {here}")
            }
            Self::Features { register, missing } => write!(
                f,
                "the processor here lacks features that the guest may use (CPUID {register}: {missing:#x})"
            ),
        }
    }
}

impl std::error::Error for Incompatible {}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.vendor, self.signature)
    }
}

impl Processor {
    /// Whether a guest that knows this processor can run on another.
    pub fn check(&self, here: &Self) -> Result<(), Incompatible> {
        if (&self.vendor, self.signature) != (&here.vendor, here.signature) {
            return Err(Incompatible::Model { saved: self.to_string(), here: here.to_string() });
        }
        for (register, bits) in &self.features {
            let missing = bits & !here.features.get(register).copied().unwrap_or(0);
            if missing != 0 {
                return Err(Incompatible::Features { register: register.clone(), missing });
            }
        }
        Ok(())
    }
}

impl Needs {
    /// Whether a machine with these needs can go on where the host gives `here`.
    pub fn check(&self, here: &Self) -> Result<(), Incompatible> {
        if self.format != here.format {
            return Err(Incompatible::Format { saved: self.format, here: here.format });
        }
        if self.agent != here.agent {
            return Err(Incompatible::Agent { saved: self.agent, here: here.agent });
        }
        self.processor.check(&here.processor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> Needs {
        let features = BTreeMap::from([("0x7.0.ebx".to_owned(), 0b110)]);
        let processor = Processor { vendor: "GenuineIntel".into(), signature: 0x806f8, features };
        Needs { format: 2, agent: 1, processor }
    }

    #[test]
    fn more_is_enough_and_less_is_told() {
        let mut here = needs();
        here.processor.features.insert("0x7.0.ecx".into(), 1);
        here.processor.features.insert("0x7.0.ebx".into(), 0b1110);
        assert_eq!(needs().check(&here), Ok(()));
        here.processor.features.insert("0x7.0.ebx".into(), 0b1100);
        let lack = needs().check(&here).unwrap_err();
        assert_eq!(lack, Incompatible::Features { register: "0x7.0.ebx".into(), missing: 0b10 });
        here.processor.signature += 1;
        assert!(needs().check(&here).unwrap_err().to_string().contains("GenuineIntel 0x806f9"));
        here.format = 3;
        assert!(matches!(needs().check(&here), Err(Incompatible::Format { saved: 2, here: 3 })));
    }
}
