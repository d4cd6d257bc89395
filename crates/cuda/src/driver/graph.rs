//! A graph: a recorded piece of a stream's life, launched as one.

use super::Stream;
use super::error::{CudaError, cu};
use cudarc::driver::sys;
use std::sync::Arc;

/// A recorded and instantiated graph.
#[derive(Debug)]
pub struct Graph {
    device: Arc<super::Device>,
    exec: sys::CUgraphExec,
    nodes: usize,
}

// SAFETY: an executable graph may be launched from any thread, one at a time; `launch` is only reached through the
// rank that owns it.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `body` queues on `stream` instead of running it. Capture is thread-local: other threads may
    /// allocate and launch meanwhile.
    ///
    /// # Errors
    /// That of `body`, or the driver's.
    pub fn capture<E: From<CudaError>>(stream: &Stream, body: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        let device = stream.device().clone();
        let ordinal = device.ordinal();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is valid.
        unsafe { cu!(ordinal, cuStreamBeginCapture_v2(stream.raw(), mode)) }?;
        let result = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: ends the capture begun above, whatever `body` did; `graph` is a valid place to write.
        let ended = unsafe { cu!(ordinal, cuStreamEndCapture(stream.raw(), &mut graph)) };
        if let Err(error) = result.and(ended.map_err(E::from)) {
            if !graph.is_null() {
                // SAFETY: the capture made it, and nothing else knows it.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            return Err(error);
        }
        let instantiated = Self::instantiate(&device, graph);
        // SAFETY: the graph was made by the capture; its executable form does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        let graph = instantiated?;
        // SAFETY: both handles are valid.
        unsafe { cu!(ordinal, cuGraphUpload(graph.exec, stream.raw())) }?;
        Ok(graph)
    }

    fn instantiate(device: &Arc<super::Device>, graph: sys::CUgraph) -> Result<Self, CudaError> {
        let ordinal = device.ordinal();
        let mut nodes = 0;
        // SAFETY: a null list asks for the count only.
        unsafe { cu!(ordinal, cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes)) }?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: `graph` is valid; `exec` is a valid place to write.
        unsafe { cu!(ordinal, cuGraphInstantiateWithFlags(&mut exec, graph, 0)) }?;
        Ok(Self { device: device.clone(), exec, nodes })
    }

    /// Nodes: kernels and copies.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Queues it.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid; whoever recorded what it points at waits for it before that goes.
        unsafe { cu!(self.device.ordinal(), cuGraphLaunch(self.exec, stream.raw())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        // SAFETY: instantiated once, destroyed once; the driver lets a running launch finish.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
