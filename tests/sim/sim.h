/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated world for engines: hosts, threads, a network, descriptors, memory that runs short and
 * a clock, in one process and one thread, all of it from one seed. The objects of libwherry call
 * the functions sim_NAME() instead of NAME() (calls.txt); nothing in src/ knows of it.
 *
 * Everything here belongs to the one thread of the process. Times are in ns of the world's clock.
 */
#ifndef SIM_H
#define SIM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_HOSTS 8
#define SIM_MS 1000000LL
#define SIM_SEC 1000000000LL

/* What the seed chose for this world: features, sizes, limits and faults. swarm.c has a row for
 * each, with the values that it may have. Rates are per mille where nothing else is said. */
struct sim_options {
	/* engines */
	int hosts, programs; /* programs: on each host */
	int transports; /* enum in program.c */
	int shared; /* regions in memory of wh_memory_alloc(): none, some, all, parts of it */
	int self; /* peers may be the engine itself */
	int threads; /* 0: WH_ENGINE_NO_THREADS */
	int ipv6, tls, crc32c;
	int connections, timeout_ms, idle_ms, slice, inline_bytes, notifications;
	/* programs */
	int block; /* bytes */
	int span_ms; /* how long faults go on */
	int patience_ms; /* longest wait for progress */
	int queue, callback, notes, address, lists, reregister, helper;
	int empty; /* transfers, lists of blocks and batches that may be empty, which end at once */
	int queue_checks; /* of its descriptor, and of freeing it while it is used */
	/* weights: receivers, 0 for none; then all programs are members */
	int weights, publishers, weights_rows, weights_shape, piece;
	int power; /* mean ms between two power failures, in a world with folders */
	int folders; /* programs serve directories, and copy files; nothing else */
	int mooncake; /* programs use Mooncake's interface; enum in dropin.c */
	int registry; /* 1: engines find each other by name, 2: and are told of changes */
	int lease_ms;
	int registry_faults; /* mean ms between two */
	/* faults of hosts: mean ms between two; 0: none */
	int cut, reset, black, stall, crash, restart, short_descriptors, short_memory, slow;
	/* faults of calls */
	int late; /* sleeps after which a thread does not run for up to 10 ms */
	int preempt; /* calls at which another thread runs */
	int eintr, spurious, short_read, short_write, accept_fails, connect_fails, epoll_fails;
	int files; /* per cent of the regions are files */
	int disk_us, disk_fails, disk_full; /* time of a call; EIO; ENOSPC */
	int disk_hangs; /* mean ms between two; 0 without threads, which wait for disks */
	int copy_pauses; /* copies of memory during which other threads run */
	int vm_refused; /* calls of process_vm that the kernel does not allow any more */
	int old_kernel; /* without SO_PEERPIDFD */
	int malloc_fails; /* of 100,000, on a host that is short of memory */
	int malloc_nth; /* one allocation of the first so many fails on each host; 0: none */
	/* network */
	int latency_us, jitter_us, mbit, segment, sndbuf, rcvbuf;
	int flip; /* of a million segments, by a bit; 0 without crc32c */
	/* NICs */
	int rdma; /* of each host; 0: none */
	int nic_connections, nic_answers; /* limits of engines */
	int nic_region; /* most bytes of a memory region */
	int nic_mbit;
	int nic_late; /* packets that come up to seconds later */
	int nic_fails; /* calls that fail for lack of memory */
	int nic_errors; /* of 10,000 requests: their queue pair fails */
	int nic_port, nic_black; /* mean ms between two; 0: none */
	/* GPUs */
	int gpus; /* of each host; 0: none */
	int gpu_regions, gpu_locals; /* per cent that are in their memory */
	int gpu_us; /* time of a copy or a kernel, besides its bytes */
	int gpu_late; /* of these, that come up to 20 ms later */
	int gpu_memory; /* calls that fail for lack of it */
	int gpu_fails; /* of 100,000 copies and kernels: the GPU is lost to their process */
	int gpu_stalls; /* mean ms between two */
	int gpu_apart; /* no GPU reaches another one's memory */
	int gpu_plain; /* no kernels, and one copy for each call */
	int zero_window_kills; /* TCP_USER_TIMEOUT also ends connections whose window is closed */
};

struct sim_counts {
	uint64_t calls, switches, events, connects, accepts, resets;
	uint64_t failed_allocations, flipped, spins;
	uint64_t nic_requests, nic_bytes, nic_errors;
	uint64_t gpu_operations, gpu_bytes, gpu_errors;
};

extern struct sim_options sim_options;
extern struct sim_counts sim_counts;
extern uint64_t sim_hash; /* over all calls, their arguments, bytes and times */
extern int64_t sim_time;
extern volatile sig_atomic_t sim_out_of_time; /* the run has taken too much CPU time */

/* ---- the world: world.c ---------------------------------------------------------------------- */

struct sim_settings {
	uint64_t seed;
	bool trace; /* a line for each call */
	int64_t stop_at; /* print the stack of the thread that runs then; 0: never */
	bool stop_spinning; /* the same at the first busy loop */
};

void sim_begin(const struct sim_settings *settings);
/* Run until no thread is left. False: `until` has come, or all threads sleep for ever. */
bool sim_run(int64_t until);
/* Start a thread of a node; node -1: of nobody's. Returns its number. */
int sim_spawn(int node, const char *name, void *(*run)(void *), void *arg);
void sim_sleep(int64_t ns);
/* The same between calls that wait in vain: what they polled does not add up to a busy loop. */
void sim_idle(int64_t ns);
/* The thread has moved something: neither does what it polled before. */
void sim_worked(void);
/* Have `variable` say what is in the environment of the running thread's process. */
void sim_environment(const char *(*variable)(const char *name));
/* Let the threads of a node whose name ends in `name` not run for so long. */
void sim_thread_hold(int node, const char *name, int64_t ns);
/* Run something after so long, in no thread. */
void sim_after(int64_t ns, void (*run)(void *), void *arg);
const char *sim_thread_name(void);
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print what every thread waits for. */
void sim_dump(void);
/* An array of the world's own, made larger or new; the real machine has the memory. */
void *sim_grow(void *array, size_t count, size_t size) __attribute__((returns_nonnull));
/* The same, so that it has room for one more than `count`, which was made in this way: now and
 * then, as a sanitizer copies all of it each time. */
void *sim_grow_one(void *array, size_t count, size_t size) __attribute__((returns_nonnull));
/* The run has failed: print why and end the process. `oracle` names the rule that was broken. */
void sim_fail(const char *oracle, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));

/* Random numbers below `below`, of streams of their own: what is drawn for one does not change the
 * others. 0 for a bound of 0. */
uint64_t sim_draw_world(uint64_t below);
uint64_t sim_draw_work(uint64_t below);
uint64_t sim_draw_chaos(uint64_t below);
void sim_draw_secret(void *out, size_t length);
bool sim_chance(int per_mille);

/* ---- hosts and nodes: node.c ----------------------------------------------------------------- */

/* A node is a process of a host: one incarnation of a program. */
int sim_node_new(int host);
int sim_node_host(int node);
int sim_node_self(void); /* of the running thread; -1: none */
/* Silent: as by a power failure. Else the kernel closes what the process had open. */
void sim_node_crash(int node, bool silent);
/* Its program has ended by itself. */
void sim_node_exit(int node);
int sim_node_descriptors(int node);
int sim_node_mappings(int node); /* of memory that other processes may have as well */
int64_t sim_node_stalled(int node); /* how long it has stood still, in all */
bool sim_node_is_stalled(int node);
void sim_node_stall(int node, int64_t ns);
void sim_node_short_descriptors(int node, int64_t ns);
/* The same, and every call that needs one fails. */
void sim_node_no_descriptors(int node, int64_t ns);
void sim_node_short_memory(int node, int64_t ns);
/* Let all allocations of this size fail; 0: none any more. */
void sim_node_fail_size(int node, size_t size);
/* Let the n-th allocation of this node from now on fail. */
void sim_node_fail_allocation(int node, uint64_t nth);
/* End all faults of hosts and of the network that last. */
void sim_heal(void);

/* ---- disks: disk.c --------------------------------------------------------------------------- */

/* Make a file on one of the host's disks. Returns its bytes, which stay where they are. */
uint8_t *sim_file_new(int host, const char *path, size_t size);
/* One of its disks does not answer for a while. */
void sim_disk_hang(int host, int64_t ns);
/* Has one not answered at some time since? */
bool sim_disk_hung(int host, int64_t since);

/* Files below directories, whose paths begin with "/disk/": names.c. Make a directory; make a file
 * as if it had been there for long; give it another name, too; remove all that is below a
 * directory. */
void sim_folder_new(int host, const char *path);
void sim_file_put(int host, const char *path, const uint8_t *bytes, size_t size, unsigned mode,
		  int64_t mtime);
void sim_file_link(int host, const char *path, const char *other);
void sim_folder_empty(int host, const char *path);

struct sim_file {
	const void *at; /* NULL: the next one is the first */
	const char *name; /* below the directory */
	const uint8_t *bytes;
	size_t size;
	unsigned mode;
	int64_t mtime; /* ns */
};

/* The next file below a directory; false: none is left. */
bool sim_file_next(int host, const char *path, struct sim_file *out);

/* ---- the network: network.c ------------------------------------------------------------------ */

void sim_network_cut(int from_host, int to_host, int64_t ns);
void sim_network_slow(int64_t ns, int factor);
void sim_network_heal(void);
bool sim_network_reset_one(void); /* a connection breaks: RST to both, or to one */
bool sim_network_black_one(int64_t ns); /* a connection loses what one side sends, or both */

/* A segment that is being sent. `connection` counts the connections that `from_host` or `to_host`
 * has opened to the other, from 0; `offset` counts the bytes of this direction. */
struct sim_packet {
	int from_host, to_host, connection;
	bool from_initiator;
	bool fin;
	uint64_t offset;
	size_t length;
	const uint8_t *bytes;
};

/* Have `delay` say by how many ns each segment comes later. NULL: none. */
void sim_network_watch(int64_t (*delay)(const struct sim_packet *packet, void *arg), void *arg);
/* Break the n-th connection between two hosts, at both ends. */
void sim_network_reset(int from_host, int to_host, int connection);
/* The same at the end of `to_host` alone: the other one learns of it when it sends. */
void sim_network_reset_there(int from_host, int to_host, int connection);

/* ---- NICs: nic-verbs.c, nic-wire.c ----------------------------------------------------------- */

void sim_nic_port(int host, int index, bool up);
/* What its NIC sends and receives gets lost, and nobody is told. */
void sim_nic_black(int host, int index, int64_t ns);
void sim_nic_heal(void);
int sim_nic_objects(int node); /* that are open */

/* ---- GPUs: gpu-driver.c, gpu-memory.c, gpu-stream.c ------------------------------------------ */

/* The program of a node uses its GPUs. */
void sim_gpu_open(int node);
/* Allocate memory for a program. Returns where its bytes are, and the address by which CUDA knows
 * it. NULL: there is none. */
uint8_t *sim_gpu_alloc(int node, int device, size_t size, uint64_t *address);
/* No GPU may move bytes there any more, whoever submits that. */
void sim_gpu_free(int node, uint64_t address);
/* The node has lost a session. A known fault: what that peer's GPUs still move does not keep a
 * region from being unregistered. */
void sim_gpu_peer_left(int node);
/* Are pages of the node's own memory still locked for its GPUs? */
bool sim_gpu_pinned(int node, const void *address, size_t length);
/* Has the node lost one of them? */
bool sim_gpu_lost(int node);
void sim_gpu_stall(int host, int index, int64_t ns);
/* How long at least one GPU of the host has stood still until now. */
int64_t sim_gpu_stalled(int host);
void sim_gpu_heal(void);
int sim_gpu_objects(int node); /* that are open */

/* ---- the registry: registry.c ---------------------------------------------------------------- */

void sim_registry_cut(int host, int64_t ns); /* it does not answer this host */
void sim_registry_down(int64_t ns);
void sim_registry_forget(void); /* it comes back without what it knew */
void sim_registry_heal(void);

/* ---- memory: call-memory.c ------------------------------------------------------------------- */

extern int64_t sim_live_blocks; /* allocations of libwherry's that were not freed */
void sim_memory_report(void);

#endif
