//! Identities: of devices, as NVML and CUDA print them, and of our own jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not the identity it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct IdError {
    text: String,
    wanted: &'static str,
}

/// A whole GPU's UUID, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVML prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

/// A MIG device's UUID: `MIG-<uuid>` since driver R470, `MIG-GPU-<uuid>/<gi>/<ci>` before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MigUuid(String);

/// What a worker is given: a whole GPU or one MIG device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceUuid {
    /// A whole GPU.
    Gpu(GpuUuid),
    /// One MIG device (a compute instance).
    Mig(MigUuid),
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.len() == 5
        && groups.iter().zip([8, 4, 4, 4, 12]).all(|(group, length)| {
            group.len() == length && group.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
        })
}

impl GpuUuid {
    /// The text as NVML prints it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl MigUuid {
    /// The text as NVML prints it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl DeviceUuid {
    /// The text that selects the device in `CUDA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Gpu(uuid) => uuid.as_str(),
            Self::Mig(uuid) => uuid.as_str(),
        }
    }
}

impl FromStr for GpuUuid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.strip_prefix("GPU-") {
            Some(uuid) if is_uuid(uuid) => Ok(Self(text.to_owned())),
            _ => {
                Err(IdError { text: text.to_owned(), wanted: "a GPU UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)" })
            }
        }
    }
}

impl FromStr for MigUuid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let error = || IdError {
            text: text.to_owned(),
            wanted: "a MIG UUID (MIG-<uuid>, or MIG-GPU-<uuid>/<gpu instance>/<compute instance>)",
        };
        let rest = text.strip_prefix("MIG-").ok_or_else(error)?;
        let valid = match rest.strip_prefix("GPU-") {
            None => is_uuid(rest),
            Some(old) => {
                let parts: Vec<&str> = old.split('/').collect();
                parts.len() == 3 && is_uuid(parts[0]) && parts[1..].iter().all(|part| part.parse::<u32>().is_ok())
            }
        };
        if valid { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

impl FromStr for DeviceUuid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.starts_with("MIG-") { text.parse().map(Self::Mig) } else { text.parse().map(Self::Gpu) }
    }
}

macro_rules! text_conversions {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text_conversions!(GpuUuid, MigUuid);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job's number in one store: short, for people and object paths. Only [`JobUid`] is unique between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job's identity wherever its results travel: 128 random bits in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobUid(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e";

    #[test]
    fn both_forms_of_a_mig_uuid_are_read() {
        for text in [format!("MIG-{UUID}"), format!("MIG-GPU-{UUID}/7/0")] {
            assert_eq!(text.parse::<DeviceUuid>().unwrap().as_str(), text);
            assert!(matches!(text.parse(), Ok(DeviceUuid::Mig(_))));
        }
        assert!(matches!(format!("GPU-{UUID}").parse(), Ok(DeviceUuid::Gpu(_))));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "0", "GPU-", "GPU-5ebe9c2f", "MIG-GPU-5ebe/7", &format!("MIG-GPU-{UUID}/7"), &format!("GPU-{UUID} ")]
        {
            assert!(text.parse::<DeviceUuid>().is_err(), "{text}");
        }
    }
}
