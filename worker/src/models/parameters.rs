//! Named parameters and buffers in the order in which a model registers them.
//!
//! They are made on their device, in their final type and memory layout, so that models and optimisers may keep handles to
//! them. Initial values are random in the way of the reference libraries, or follow from the names.

use std::cell::{Ref, RefCell};
use std::fmt::Display;

use migperf_core::workload::MemoryFormat;
use tch::{Device, Kind, TchError, Tensor};

use super::from_names;
use crate::bridge;

/// What an entry is to its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Trained, and among what the reference library counts.
    Parameter,
    /// Trained, but belongs to a head that the reference model hasn't.
    Head,
    /// Not trained: running statistics.
    Buffer,
}

/// One named tensor.
#[derive(Debug)]
pub struct Entry {
    /// The name in the reference library's state dictionary.
    pub name: String,
    /// What it is to the model.
    pub role: Role,
    /// A handle to the values that the model uses.
    pub tensor: Tensor,
}

/// How values start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal around zero.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// Uniform around zero.
    Uniform {
        /// Half the width.
        bound: f64,
    },
}

impl Init {
    /// What linear layers and convolutions start with where a model says nothing else: uniform, bounded by
    /// 1/√(inputs of one output).
    #[must_use]
    pub fn by_inputs(inputs: i64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "layers have far fewer than 2^53 inputs")]
        Self::Uniform { bound: 1.0 / (inputs as f64).sqrt() }
    }

    /// A new fp32 tensor, drawn on its device.
    fn draw(self, shape: &[i64], device: Device) -> Result<Tensor, TchError> {
        let mut tensor = Tensor::f_empty(shape, (Kind::Float, device))?;
        match self {
            Self::Zeros => tensor.f_zero_(),
            Self::Ones => tensor.f_fill_(1.0),
            Self::Normal { deviation } => tensor.f_normal_(0.0, deviation),
            Self::Uniform { bound } => tensor.f_uniform_(-bound, bound),
        }
    }
}

/// Where initial values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Libtorch's generator, distributed as the model says.
    Random,
    /// Names and shapes, by [`from_names`]: the same on every machine, to compare with reference libraries.
    FromNames,
}

/// All tensors of one model.
#[derive(Debug)]
pub struct Parameters {
    values: Values,
    device: Device,
    kind: Kind,
    memory_format: MemoryFormat,
    trainable: bool,
    entries: RefCell<Vec<Entry>>,
}

impl Parameters {
    /// A place for parameters on `device`, of floating type `kind`, which require gradients if `trainable`.
    #[must_use]
    pub fn new(device: Device, kind: Kind, memory_format: MemoryFormat, trainable: bool, values: Values) -> Self {
        Self { values, device, kind, memory_format, trainable, entries: RefCell::new(Vec::new()) }
    }

    /// Where the parameters are.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Their floating type, which inputs must have too.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The layout of convolutions' tensors.
    #[must_use]
    pub fn memory_format(&self) -> MemoryFormat {
        self.memory_format
    }

    /// Whether a model registers parameters that will be trained.
    #[must_use]
    pub fn trainable(&self) -> bool {
        self.trainable
    }

    /// The outermost scope, whose names have no prefix.
    #[must_use]
    pub fn root(&self) -> Scope<'_> {
        Scope { store: self, prefix: String::new(), role: Role::Parameter }
    }

    /// Every entry, in order of registration.
    #[must_use]
    pub fn entries(&self) -> Ref<'_, [Entry]> {
        Ref::map(self.entries.borrow(), Vec::as_slice)
    }

    /// Handles to what is trained, head included, in order of registration.
    #[must_use]
    pub fn trained(&self) -> Vec<Tensor> {
        self.entries().iter().filter(|entry| entry.role != Role::Buffer).map(|e| e.tensor.shallow_clone()).collect()
    }

    /// How many numbers all entries of a role hold.
    #[must_use]
    pub fn count(&self, role: Role) -> u64 {
        self.entries().iter().filter(|entry| entry.role == role).map(|entry| entry.tensor.numel() as u64).sum()
    }

    /// The same values in the layout that was chosen for convolutions' tensors; others are left alone.
    ///
    /// # Errors
    /// When the copy doesn't fit.
    pub fn lay_out(&self, tensor: Tensor) -> Result<Tensor, TchError> {
        if self.memory_format == MemoryFormat::ChannelsLast && tensor.dim() == 4 {
            bridge::channels_last(&tensor).map_err(|error| TchError::Torch(error.to_string()))
        } else {
            Ok(tensor)
        }
    }

    fn register(&self, name: String, role: Role, tensor: Tensor) -> Tensor {
        let handle = tensor.shallow_clone();
        self.entries.borrow_mut().push(Entry { name, role, tensor });
        handle
    }
}

/// A named part of a model, into which its parameters are registered.
#[derive(Debug, Clone)]
pub struct Scope<'a> {
    store: &'a Parameters,
    prefix: String,
    role: Role,
}

impl Scope<'_> {
    /// The part called `name` of this part.
    #[must_use]
    pub fn at(&self, name: impl Display) -> Self {
        Self { store: self.store, prefix: self.name_of(name), role: self.role }
    }

    /// The part called `name`, which the reference model hasn't.
    #[must_use]
    pub fn head(&self, name: impl Display) -> Self {
        Self { role: Role::Head, ..self.at(name) }
    }

    /// All tensors of the model.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.store
    }

    /// Registers a trained tensor.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn parameter(&self, name: &str, shape: &[i64], init: Init) -> Result<Tensor, TchError> {
        let name = self.name_of(name);
        let tensor = self.initialised(&name, shape, init)?.f_set_requires_grad(self.store.trainable)?;
        Ok(self.store.register(name, self.role, tensor))
    }

    /// Registers a floating tensor that isn't trained.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn buffer(&self, name: &str, shape: &[i64], init: Init) -> Result<Tensor, TchError> {
        let name = self.name_of(name);
        let tensor = self.initialised(&name, shape, init)?;
        Ok(self.store.register(name, Role::Buffer, tensor))
    }

    /// Registers a whole number, zero.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn counter(&self, name: &str) -> Result<Tensor, TchError> {
        let tensor = Tensor::f_zeros([0i64; 0], (Kind::Int64, self.store.device))?;
        Ok(self.store.register(self.name_of(name), Role::Buffer, tensor))
    }

    fn name_of(&self, name: impl Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// Values are drawn in fp32, as the reference libraries do before they convert.
    fn initialised(&self, name: &str, shape: &[i64], init: Init) -> Result<Tensor, TchError> {
        let tensor = match self.store.values {
            Values::Random => init.draw(shape, self.store.device)?,
            Values::FromNames => from_names::parameter(name, shape)?.f_to_device(self.store.device)?,
        };
        self.store.lay_out(tensor.f_to_kind(self.store.kind)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dotted_and_heads_are_counted_apart() {
        let parameters = Parameters::new(Device::Cpu, Kind::Float, MemoryFormat::ChannelsLast, true, Values::Random);
        let root = parameters.root();
        drop(root.at("layer1").at(0).parameter("weight", &[4, 2, 3, 3], Init::by_inputs(18)).unwrap());
        drop(root.head("classifier").parameter("bias", &[2], Init::Zeros).unwrap());
        drop(root.at("bn").counter("num_batches_tracked").unwrap());
        let names: Vec<String> = parameters.entries().iter().map(|entry| entry.name.clone()).collect();
        assert_eq!(names, ["layer1.0.weight", "classifier.bias", "bn.num_batches_tracked"]);
        assert_eq!((parameters.count(Role::Parameter), parameters.count(Role::Head)), (72, 2));
        assert!(bridge::is_channels_last(&parameters.entries()[0].tensor).unwrap());
        assert_eq!(parameters.trained().len(), 2);
        assert!(parameters.trained().iter().all(Tensor::requires_grad));
    }
}
