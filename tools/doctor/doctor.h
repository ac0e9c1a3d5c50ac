/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of wherry doctor share: findings; facts, which are gathered once for all checks;
 * and the tables of checks. */
#ifndef TOOLS_DOCTOR_DOCTOR_H
#define TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>

#include <jansson.h>

#include "net/meet.h"
#include "topo/topo.h"

/* ---- findings -------------------------------------------------------------------------------- */

/* From good to bad: the worst finding of a check is its verdict. */
enum verdict { PASS, INFO, UNKNOWN, WARN, FAIL };

/* The hardware that the machine would need for a check to apply. */
enum absent { NOTHING_ABSENT, ABSENT_GPU, ABSENT_NIC, ABSENT_PCI };
extern const char *const doctor_absences[]; /* as text */

struct finding {
	enum verdict verdict;
	enum absent absent;
	unsigned passed; /* times that PASS was found */
	char evidence[1024];
	char fix[512];
	double seconds;
};

/* Add a finding. The verdict becomes the worst of all, and evidence of PASS goes once there is
 * worse. */
void finding_add(struct finding *finding, enum verdict verdict, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* INFO: the machine does not have it. The summary reports several such checks in one line. */
void finding_add_absent(struct finding *finding, enum absent what);

/* Say how to fix the problem. Only the first advice is kept. */
void finding_advise(struct finding *finding, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- facts ----------------------------------------------------------------------------------- */

#define FACTS_GPUS 64
#define FACTS_NICS 64
#define FACTS_PORTS 4
#define DOCTOR_WHY 192

/* One GPU's attributes in CUDA. */
struct cuda_fact {
	char address[WH_ADDRESS];
	int rdma, dma_buf, rdma_vmm, fabric; /* 1: yes */
	uint64_t l2_bytes;
};

struct cuda_facts {
	bool known;
	int error; /* positive errno: CUDA cannot be used, and `why` */
	char why[256];
	int version; /* 13000 */
	int count;
	struct cuda_fact gpus[FACTS_GPUS];
};

/* One GPU's memory with one NIC: the errno of each step; -1: not tried. */
struct gpu_fact {
	char address[WH_ADDRESS];
	int exported, registered; /* as a dma-buf */
	int peermem; /* registered by its address */
	int moved; /* written and read, however it was registered */
	bool late; /* out of time before the last step */
	char why[DOCTOR_WHY]; /* why nothing was moved */
};

/* One NIC as libibverbs describes it. */
struct verbs_fact {
	char name[WH_NAME];
	int dma_buf; /* errno of ibv_reg_dmabuf_mr(fd -1); -1: not tried */
	int mtu[FACTS_PORTS], mtu_most[FACTS_PORTS]; /* bytes; -1: unknown */
	bool late; /* no answer in time */
	int gpu_count; /* GPUs whose memory is tried with this NIC */
	struct gpu_fact gpus[FACTS_GPUS];
};

struct verbs_facts {
	bool known;
	bool cuda_late; /* CUDA did not start in time: no GPU was tried */
	int error; /* positive errno: no NIC can be listed, and `why` */
	char why[256];
	int count;
	struct verbs_fact nics[FACTS_NICS];
};

/* OpenSSL's libcrypto, with which engines authenticate each other. */
struct crypto_facts {
	bool known;
	int error; /* positive errno: not installed, or no HMAC-SHA-256, and `why` */
	char why[256];
};

/* Backends of CPU windows, each tried on one GPU's memory. */
struct window_facts {
	int count; /* 0: none was tried */
	struct {
		char name[16]; /* "driver", "dmabuf", "rm" */
		int error; /* positive errno; 0: a window opens */
		char why[DOCTOR_WHY];
	} backends[4];
};

/* One GPU's PCIe links while data is copied to the GPU and back. */
struct link_fact {
	char address[WH_ADDRESS]; /* of the GPU */
	int index; /* in NVML; -1 */
	int error; /* positive errno: nothing was copied, and `why` */
	char why[DOCTOR_WHY];
	int generation, width; /* the highest seen in NVML; -1 */
	int generation_most, width_most;
	int count;
	struct {
		char address[WH_ADDRESS]; /* of the link's lower end */
		double speed, speed_most; /* GT/s, the highest seen in sysfs; NAN */
		int width, width_most;
	} links[WH_PCI_DEPTH];
};

/* All that checks look at. */
struct doctor {
	struct wh_tree tree;
	struct wh_topology *topology; /* NULL: sysfs could not be read in time */
	bool nvml; /* `topology` has NVML's answers */
	const char *nvml_why; /* why it has not */
	int nvml_error;
	bool late; /* NVML did not answer in time */
	const char *peer; /* --peer; NULL: none */
	bool cuda_late; /* a check needs CUDA, which did not answer in time */
	struct cuda_facts cuda;
	struct verbs_facts verbs;
};

/* Ask libcuda, or read ROOT/cuda.txt. */
void facts_cuda(const struct wh_tree *tree, struct cuda_facts *out);

/* Ask libibverbs about all NICs at once, or read ROOT/verbs.txt. What is not answered within
 * `seconds` is marked late. `memory`: also register each GPU's memory with each NIC; `move`: also
 * write and read it. False: threads were abandoned, which may hang for ever. */
bool facts_verbs(const struct wh_tree *tree, bool memory, bool move, double seconds,
		 struct verbs_facts *out);

/* Try libcrypto, or read ROOT/crypto.txt. */
void facts_crypto(const struct wh_tree *tree, struct crypto_facts *out);

/* Open a window on the memory of a GPU by each backend, or read ROOT/windows.txt. */
void facts_windows(const struct wh_tree *tree, const char *gpu, struct window_facts *out);

/* Watch the links of several GPUs at once while each GPU copies, or read ROOT/links.txt. The caller
 * fills in the addresses, and what the links are now and could be. Takes up to `seconds`; 0: watch
 * none. */
void facts_links(const struct wh_tree *tree, double seconds, struct link_fact *facts, size_t count);

/* Files of facts in a recorded tree:
 * facts_file: open one for writing; NULL if nothing is recorded.
 * facts_lines: call `each` with every line of one; false: no such file.
 * facts_value: the number after " KEY=" in a line; -1: no such key.
 * facts_error: parse "error ERRNO TEXT"; false: the line is something else. */
FILE *facts_file(const struct wh_tree *tree, const char *name);
bool facts_lines(const struct wh_tree *tree, const char *name,
		 void (*each)(const char *line, void *arg), void *arg);
long long facts_value(const char *line, const char *key);
bool facts_error(const char *line, int *error, char why[256]);

/* Write and read the memory of each of the NIC's GPUs through the NIC: fills in `moved` and `why`,
 * and calls `each` after every GPU. GPUs not reached before `until` (facts_now()) stay late. */
void doctor_move(struct verbs_fact *nic, double until, void (*each)(void *arg), void *arg);

/* Seconds of the monotonic clock. */
double facts_now(void);

/* Run probe(arg) on a thread of its own and wait up to `seconds`. False: it is still running and
 * was abandoned; everything that it uses must stay allocated. */
bool facts_bounded(void (*probe)(void *arg), void *arg, double seconds);
/* Was any probe abandoned? It may hang in a driver and keep the process from exiting. */
bool facts_hang(void);

/* ---- checks ---------------------------------------------------------------------------------- */

/* Facts to gather before a check runs. A check that names or counts GPUs needs NVML, so that it
 * finds the same alone and among others. */
enum {
	NEEDS_SYSFS = 1,
	NEEDS_NVML = 2 | NEEDS_SYSFS,
	NEEDS_CUDA = 4,
	NEEDS_VERBS = 8, /* NICs only */
	NEEDS_MEMORY = 16 | NEEDS_VERBS, /* and GPU memory registered with NICs */
	NEEDS_MOVE = 32 | NEEDS_MEMORY, /* and written and read */
};

/* Hardware without which a check does not apply. */
enum { GPUS = 1, NICS = 2 };

/* A port of an RDMA NIC. */
struct nic_port {
	const struct wh_nic *nic;
	int number;
	bool first; /* of its NIC's ports */
	char name[WH_NAME + 16]; /* the NIC's; with ":2" if the NIC has several ports */
	char folder[WH_NAME + 64]; /* in sysfs */
	char layer[WH_NAME], netdev[WH_NAME]; /* "": unknown */
};

typedef void machine_check(const struct doctor *doctor, struct finding *finding);
typedef void gpu_check(const struct doctor *doctor, size_t index, const char *name,
		       struct finding *finding);
typedef void device_check(const struct doctor *doctor, const struct wh_pci *device,
			  const char *name, struct finding *finding);
typedef void nic_check(const struct doctor *doctor, const struct wh_nic *nic,
		       struct finding *finding);
typedef void port_check(const struct doctor *doctor, const struct nic_port *port,
			struct finding *finding);

struct check {
	const char *id; /* stable: scripts use it */
	const char *title;
	unsigned needs, subjects;
	/* One of these: called once; or for each GPU, each GPU and RDMA NIC in PCI, each RDMA NIC,
	 * or each of their ports. */
	machine_check *machine;
	gpu_check *gpu;
	device_check *device;
	nic_check *nic;
	port_check *port;
	const char *not_roce; /* set: `port` is for RoCE only, and why other ports pass */
	machine_check *end; /* called last; NULL: nothing to add */
};

/* Each table ends with a zero row. */
extern const struct check doctor_gpu_checks[], doctor_pci_checks[], doctor_nic_checks[],
	doctor_host_checks[], doctor_container_checks[];
/* Only with --peer. */
extern const struct check doctor_peer_check;

/* Run one check: fill in all of `finding` but the seconds. */
void doctor_check(const struct doctor *doctor, const struct check *check, struct finding *finding);

/* Call a check for each GPU that NVML shows. */
void doctor_each_gpu(const struct doctor *doctor, gpu_check *check, struct finding *finding);

/* The GPUs and RDMA NICs in PCI, one after the other: an index of topology->pci and the device's
 * name. Start with *at = 0; -1: no more. */
int doctor_next_device(const struct doctor *doctor, size_t *at, char name[WH_NAME]);
/* Add the finding for a machine that has neither. */
void doctor_no_device(const struct doctor *doctor, struct finding *finding);

/* How many NVIDIA GPUs, and NICs with RDMA, the machine has. */
size_t doctor_gpus(const struct doctor *doctor);
size_t doctor_rdma(const struct doctor *doctor);

/* Read a variable of this process's environment, or of ROOT/environment. False: it is not set, and
 * `out` is "". */
bool doctor_environment(const struct doctor *doctor, const char *name, char *out, size_t size);

/* The folders of the setting `meet`. */
void doctor_folders(const struct doctor *doctor, struct wh_meet_folders *out);

/* A NIC's facts by its name; NULL: unknown to libibverbs. */
const struct verbs_fact *doctor_verbs(const struct doctor *doctor, const char *name);

/* ---- failed registrations -------------------------------------------------------------------- */

/* What the errno of a failed registration with a NIC means, and the fix; NULL: unknown. */
struct registration {
	int error;
	const char *means, *fix;
};
const struct registration *doctor_registration(int error);

/* Print what such an errno means and how to fix it; `text` is "14" or "EFAULT". An exit code. */
int doctor_explain(const char *text, bool json);

#endif
