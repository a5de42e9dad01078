// Settings of the process that the transport's speed depends on. Called once, first thing in a program's main.
#pragma once

namespace everstep::transport {

// Makes glibc keep freed message buffers instead of giving them back to the kernel. libzmq allocates a fresh buffer for
// every message it receives; at glibc's default thresholds each one above 128 KiB is mapped and unmapped again, and
// touching fresh pages costs ten times the copy into them. Measured with 1 MB frames between two processes on 2 busy
// cores, medians of 7 interleaved rounds: ipc 3.7 GB/s with it, 2.6 without; over tcp the kernel's copies hide it.
void TuneAllocator();

// Raises the soft limit of open descriptors to the hard one. A server holds one descriptor per lane of every peer, a
// connecting end four; libzmq ends the process when it cannot accept on an ipc socket for want of descriptors.
void RaiseDescriptorLimit();

}  // namespace everstep::transport
