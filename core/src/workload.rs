//! What one worker runs: a model, what is done with it, and the shape and precision of the work.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A family of models: what decides inputs, the optimiser and which options make sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Residual convolutional networks on 3×224×224 images.
    Resnet,
    /// Transformer encoders on token sequences.
    Bert,
    /// Vision transformers on 3×224×224 images.
    Vit,
    /// Denoising UNets: one step.
    Unet,
    /// No work at all: what remains is the harness.
    Empty,
}

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// Every value, in the order in which they are listed to people.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in suites, options and reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| UnknownName {
                    text: text.to_owned(),
                    known: Self::ALL.iter().map(|value| value.name()).collect(),
                })
            }
        }
    };
}

pub(crate) use named_enum;

/// A name that is none of the known ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not known; one of {}{}", .known.join(", "), nearest(.text, .known).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
pub struct UnknownName {
    /// What was written.
    pub text: String,
    /// What could have been.
    pub known: Vec<&'static str>,
}

/// The known name that a mistyped one most resembles, if any is close.
#[must_use]
pub fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(text, name), *name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

named_enum!(
    /// A model architecture with the parameter names, shapes and counts of its reference implementation.
    Model {
        /// torchvision `resnet18`.
        Resnet18 = "resnet18",
        /// torchvision `resnet34`.
        Resnet34 = "resnet34",
        /// torchvision `resnet50`.
        Resnet50 = "resnet50",
        /// torchvision `resnet101`.
        Resnet101 = "resnet101",
        /// torchvision `resnet152`.
        Resnet152 = "resnet152",
        /// transformers `bert-base-uncased`.
        BertBase = "bert-base",
        /// transformers `bert-large-uncased`.
        BertLarge = "bert-large",
        /// transformers `distilbert-base-uncased`.
        DistilBert = "distilbert",
        /// transformers `roberta-base`.
        RobertaBase = "roberta-base",
        /// torchvision `vit_b_16`.
        VitB16 = "vit-b-16",
        /// torchvision `vit_l_16`.
        VitL16 = "vit-l-16",
        /// diffusers `UNet2DConditionModel` in Stable Diffusion 1.5's configuration.
        Sd15Unet = "sd15-unet",
        /// diffusers `UNet2DModel`, tens of millions of parameters.
        DdpmUnet = "ddpm-unet",
        /// No work: measures the harness itself.
        Empty = "empty",
    }
);

impl Model {
    /// The family, which decides inputs and options.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Resnet18 | Self::Resnet34 | Self::Resnet50 | Self::Resnet101 | Self::Resnet152 => Family::Resnet,
            Self::BertBase | Self::BertLarge | Self::DistilBert | Self::RobertaBase => Family::Bert,
            Self::VitB16 | Self::VitL16 => Family::Vit,
            Self::Sd15Unet | Self::DdpmUnet => Family::Unet,
            Self::Empty => Family::Empty,
        }
    }

    /// The longest sequence the model has positions for, where it takes sequences.
    #[must_use]
    pub fn longest_sequence(self) -> Option<u32> {
        (self.family() == Family::Bert).then_some(512)
    }

    /// Trainable parameters of the reference implementation, as its library counts them.
    #[must_use]
    pub fn parameters(self) -> u64 {
        match self {
            Self::Resnet18 => 11_689_512,
            Self::Resnet34 => 21_797_672,
            Self::Resnet50 => 25_557_032,
            Self::Resnet101 => 44_549_160,
            Self::Resnet152 => 60_192_808,
            Self::BertBase => 109_482_240,
            Self::BertLarge => 335_141_888,
            Self::DistilBert => 66_362_880,
            Self::RobertaBase => 124_645_632,
            Self::VitB16 => 86_567_656,
            Self::VitL16 => 304_326_632,
            Self::Sd15Unet => 859_520_964,
            Self::DdpmUnet => 35_746_307,
            Self::Empty => 0,
        }
    }
}

named_enum!(
    /// What is done with the model in each batch.
    Task {
        /// Forward, loss, backward and optimiser step, in training mode.
        Train = "train",
        /// Forward in evaluation and inference mode.
        Infer = "infer",
    }
);

named_enum!(
    /// The arithmetic. Parameters and optimiser state of training stay fp32 (mixed precision) in bf16 and fp16.
    Precision {
        /// IEEE single precision, TF32 off.
        Fp32 = "fp32",
        /// Single precision whose matrix products and convolutions may use TF32.
        Tf32 = "tf32",
        /// bfloat16: autocast when training, converted parameters when inferring.
        Bf16 = "bf16",
        /// IEEE half precision: autocast and loss scaling when training, converted parameters when inferring.
        Fp16 = "fp16",
    }
);

named_enum!(
    /// Where a batch's input is when the batch starts.
    Input {
        /// Resident on the device, made once.
        Device = "device",
        /// In pinned host memory, copied to the device within each batch.
        Host = "host",
    }
);

named_enum!(
    /// How a worker waits for the device at the end of each batch.
    Wait {
        /// Spinning: the lowest latency, one core busy.
        Spin = "spin",
        /// Sleeping in the driver: frees the core, adds wake-up time to each batch.
        Block = "block",
    }
);

named_enum!(
    /// Memory layout of convolutions' tensors.
    MemoryFormat {
        /// NCHW.
        Contiguous = "contiguous",
        /// NHWC, which tensor cores prefer.
        ChannelsLast = "channels-last",
    }
);

named_enum!(
    /// How cuDNN chooses its convolution algorithms.
    Cudnn {
        /// By its heuristics: the same choice for each worker.
        Heuristic = "heuristic",
        /// By timing them before Ready, one worker at a time while the others wait.
        Tuned = "tuned",
    }
);

/// What one worker runs, complete: every choice is made and recorded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Workload {
    /// The architecture.
    pub model: Model,
    /// Training or inference.
    pub task: Task,
    /// Items (images, sequences, latents) in a batch.
    pub batch_size: u32,
    /// Tokens in a sequence; only of models that take sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<u32>,
    /// The arithmetic.
    pub precision: Precision,
    /// Where inputs are.
    pub input: Input,
    /// Layout of convolutions' tensors.
    pub memory_format: MemoryFormat,
    /// How the worker waits for the device.
    pub wait: Wait,
    /// How convolution algorithms are chosen.
    pub cudnn: Cudnn,
}

/// Why a workload can't be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// A batch must hold something and stay within reason.
    #[error("batch-size {0} is outside 1 to {max}", max = Workload::LARGEST_BATCH)]
    BatchSize(u32),
    /// Sequences only make sense to models that take them.
    #[error("sequence-length is given, but {0} takes no sequences")]
    NoSequences(Model),
    /// Positions end where the reference model's do.
    #[error("sequence-length {length} is outside 1 to {longest}, the positions that {model} has")]
    SequenceLength {
        /// What was asked.
        length: u32,
        /// The most the model has.
        longest: u32,
        /// Which model.
        model: Model,
    },
}

impl Workload {
    /// More items than this in a batch is taken for a mistake.
    pub const LARGEST_BATCH: u32 = 65_536;
    /// Tokens in a sequence when nothing is said.
    pub const DEFAULT_SEQUENCE: u32 = 128;

    /// A workload with the documented defaults: fp32, input on the device, spinning, heuristics, and channels-last
    /// wherever tensor cores do the convolutions (every precision but fp32).
    #[must_use]
    pub fn new(model: Model, task: Task, batch_size: u32, precision: Precision) -> Self {
        Self {
            model,
            task,
            batch_size,
            sequence_length: model.longest_sequence().map(|_| Self::DEFAULT_SEQUENCE),
            precision,
            input: Input::Device,
            memory_format: Self::default_memory_format(model, precision),
            wait: Wait::Spin,
            cudnn: Cudnn::Heuristic,
        }
    }

    /// Channels-last for convolutional models in every precision but fp32.
    #[must_use]
    pub fn default_memory_format(model: Model, precision: Precision) -> MemoryFormat {
        match (model.family(), precision) {
            (Family::Resnet | Family::Unet, Precision::Tf32 | Precision::Bf16 | Precision::Fp16) => {
                MemoryFormat::ChannelsLast
            }
            _ => MemoryFormat::Contiguous,
        }
    }

    /// Checks what the types can't.
    ///
    /// # Errors
    /// Names the first choice that can't be.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if self.batch_size == 0 || self.batch_size > Self::LARGEST_BATCH {
            return Err(WorkloadError::BatchSize(self.batch_size));
        }
        match (self.sequence_length, self.model.longest_sequence()) {
            (Some(_), None) => Err(WorkloadError::NoSequences(self.model)),
            (Some(length), Some(longest)) if length == 0 || length > longest => {
                Err(WorkloadError::SequenceLength { length, longest, model: self.model })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Workload {
    /// What people call it: `resnet18 train b32 fp32`, with only those options that are not the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} b{}", self.model, self.task, self.batch_size)?;
        if let Some(length) = self.sequence_length {
            write!(f, " s{length}")?;
        }
        write!(f, " {}", self.precision)?;
        let default = Self::new(self.model, self.task, self.batch_size, self.precision);
        if self.input != default.input {
            write!(f, " {}-input", self.input)?;
        }
        if self.memory_format != default.memory_format {
            write!(f, " {}", self.memory_format)?;
        }
        if self.wait != default.wait {
            write!(f, " {}-wait", self.wait)?;
        }
        if self.cudnn != default.cudnn {
            write!(f, " cudnn-{}", self.cudnn)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_named_by_what_differs() {
        let mut workload = Workload::new(Model::BertBase, Task::Infer, 8, Precision::Bf16);
        assert_eq!(workload.to_string(), "bert-base infer b8 s128 bf16");
        workload.input = Input::Host;
        assert_eq!(workload.to_string(), "bert-base infer b8 s128 bf16 host-input");
    }

    #[test]
    fn impossible_workloads_are_refused() {
        let mut workload = Workload::new(Model::Resnet18, Task::Train, 0, Precision::Fp32);
        assert_eq!(workload.check(), Err(WorkloadError::BatchSize(0)));
        workload.batch_size = 32;
        workload.sequence_length = Some(128);
        assert_eq!(workload.check(), Err(WorkloadError::NoSequences(Model::Resnet18)));
        workload.model = Model::RobertaBase;
        workload.sequence_length = Some(513);
        assert!(workload.check().unwrap_err().to_string().contains("512"));
    }

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest() {
        let message = "resnet-18".parse::<Model>().unwrap_err().to_string();
        assert!(message.ends_with("did you mean `resnet18`?"), "{message}");
    }
}
