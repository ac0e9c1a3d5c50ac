/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of wherry doctor share. */
#ifndef TOOLS_DOCTOR_DOCTOR_H
#define TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>

#include <jansson.h>

#include "topo/topo.h"

/* ---- findings -------------------------------------------------------------------------------- */

/* From good to bad: the worst that a check finds is its verdict. */
enum verdict { PASS, INFO, UNKNOWN, WARN, FAIL };

/* What a check would have looked at. */
enum absent { NOTHING_ABSENT, ABSENT_GPU, ABSENT_NIC, ABSENT_PCI };

struct finding {
	enum verdict verdict;
	enum absent absent;
	char evidence[1024];
	char fix[512];
	double seconds;
};

/* One more thing that was seen; the verdict becomes the worst of all. */
void found(struct finding *finding, enum verdict verdict, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* INFO: the machine does not have it. Of several checks that is said in one line. */
void found_absent(struct finding *finding, enum absent what);

/* What to do about it. The first one stays. */
void advise(struct finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- what checks look at --------------------------------------------------------------------- */

#define FACTS_GPUS 64
#define FACTS_NICS 64
#define FACTS_PORTS 4
#define DOCTOR_WHY 192

/* What the CUDA driver says of a GPU. */
struct cuda_fact {
	char address[WH_ADDRESS];
	int rdma, dma_buf, rdma_vmm, fabric; /* 1: yes */
	uint64_t l2_bytes;
};

struct cuda_facts {
	bool known;
	int error; /* positive: no CUDA, and `why` */
	char why[256];
	int version; /* 13000 */
	int count;
	struct cuda_fact gpus[FACTS_GPUS];
};

/* A GPU's memory with a NIC: the errno of each step, -1: not tried. */
struct gpu_fact {
	char address[WH_ADDRESS];
	int exported, registered; /* as a dma-buf */
	int peermem; /* registered by its address */
	int moved; /* written and read, by either */
	bool late; /* there was no time for all of it */
	char why[DOCTOR_WHY]; /* nothing was moved */
};

/* What libibverbs says of a NIC. */
struct verbs_fact {
	char name[WH_NAME];
	int dma_buf; /* the errno of ibv_reg_dmabuf_mr(fd -1); -1: not tried */
	int mtu[FACTS_PORTS], mtu_most[FACTS_PORTS]; /* bytes; -1 */
	bool late; /* it did not answer in time */
	int gpu_count; /* GPUs whose memory was tried here, or was to be */
	struct gpu_fact gpus[FACTS_GPUS];
};

struct verbs_facts {
	bool known;
	bool cuda_late; /* no GPU was tried, for CUDA did not start in time */
	int error;
	char why[256];
	int count;
	struct verbs_fact nics[FACTS_NICS];
};

/* What OpenSSL's libcrypto says, which engines prove their keys with. */
struct crypto_facts {
	bool known;
	int error; /* positive: it is not there or does not do it, and `why` */
	char why[256];
};

/* Ways to a CPU window onto the memory of one GPU. */
struct window_facts {
	int count; /* 0: none was tried */
	struct {
		char name[16]; /* "driver", "dmabuf", "rm" */
		int error; /* positive; 0: it opens */
		char why[DOCTOR_WHY];
	} ways[4];
};

/* The links of a GPU while something is copied to it and back. */
struct link_fact {
	char address[WH_ADDRESS]; /* of the GPU */
	int index; /* as NVML counts; -1 */
	int error; /* positive: nothing was copied, and `why` */
	char why[DOCTOR_WHY];
	int generation, width; /* the best that NVML said; -1 */
	int generation_most, width_most;
	int count;
	struct {
		char address[WH_ADDRESS]; /* of its lower end */
		double speed, speed_most; /* GT/s, the best that sysfs said; NAN */
		int width, width_most;
	} links[WH_PCI_DEPTH];
};

struct doctor {
	struct wh_tree tree;
	struct wh_topology *topology; /* NULL: could not be read in time */
	bool nvml; /* NVML's answers are in it */
	const char *nvml_why; /* no NVML: why */
	int nvml_error;
	bool late; /* NVML did not answer in time */
	bool cuda_late; /* nor did CUDA, which was asked */
	struct cuda_facts cuda;
	struct verbs_facts verbs;
};

/* What libcuda says, of this machine or from ROOT/cuda.txt. */
void facts_cuda(const struct wh_tree *tree, struct cuda_facts *out);

/* The same of libibverbs and ROOT/verbs.txt: all NICs at a time, and what is not answered within
 * `seconds` is late. `memory`: register each GPU's memory with each; `move`: and have it written
 * and read. False: threads were given up that may hang for ever. */
bool facts_verbs(const struct wh_tree *tree, bool memory, bool move, double seconds,
		 struct verbs_facts *out);

/* The same of libcrypto and ROOT/crypto.txt. */
void facts_crypto(const struct wh_tree *tree, struct crypto_facts *out);

/* Open a window onto the memory of a GPU in each way, or what ROOT/windows.txt says of that. */
void facts_windows(const struct wh_tree *tree, const char *gpu, struct window_facts *out);

/* Look at the links of GPUs while each copies, all of them side by side, or at what ROOT/links.txt
 * says of that. In: whose they are, what they are now and at most. Takes up to `seconds`; 0: none
 * is looked at. */
void facts_links(const struct wh_tree *tree, double seconds, struct link_fact *facts, size_t count);

/* Text of a recorded tree. A file of it to write, NULL if none is recorded; a call of `each` with
 * every line of one, false if there is none; the number behind " KEY=" in a line, -1 if there is
 * none; what "error ERRNO TEXT" says, false if the line is none. */
FILE *facts_file(const struct wh_tree *tree, const char *name);
bool facts_lines(const struct wh_tree *tree, const char *name,
		 void (*each)(const char *line, void *arg), void *arg);
long long facts_value(const char *line, const char *key);
bool facts_error(const char *line, int *error, char why[256]);

/* Write and read the memory of each of its GPUs by the NIC: fills in `moved` and `why`, and calls
 * `each` after every GPU. Those for which there is no time until `until` (facts_now()) stay late.
 */
void doctor_move(struct verbs_fact *nic, double until, void (*each)(void *arg), void *arg);

/* Seconds of the monotonic clock. */
double facts_now(void);

/* Run probe(arg) on a thread of its own for up to `seconds`. False: it has not ended; it goes on,
 * so all that it touches must stay. */
bool bounded(void (*probe)(void *arg), void *arg, double seconds);
/* Has any of them been given up? It may hang in a driver, and keep the process from ending. */
bool bounded_hangs(void);

/* ---- checks ---------------------------------------------------------------------------------- */

/* What has to be asked before a check can look at it. What needs GPUs by name, or their number,
 * needs NVML: a check says the same alone as among others. */
enum {
	NEEDS_SYSFS = 1,
	NEEDS_NVML = 2 | NEEDS_SYSFS,
	NEEDS_CUDA = 4,
	NEEDS_VERBS = 8, /* NICs alone */
	NEEDS_MEMORY = 16 | NEEDS_VERBS, /* and the GPUs' memory registered with them */
	NEEDS_MOVE = 32 | NEEDS_MEMORY, /* and written and read */
};

struct check {
	const char *id; /* stable: scripts know it */
	const char *title;
	void (*run)(const struct doctor *doctor, struct finding *finding);
	unsigned needs;
};

/* Each list ends with a zero row. */
extern const struct check doctor_gpu_checks[], doctor_pci_checks[], doctor_nic_checks[],
	doctor_host_checks[];

/* GPUs of NVIDIA, and NICs with RDMA, that the machine has. */
size_t doctor_gpus(const struct doctor *doctor);
size_t doctor_rdma(const struct doctor *doctor);

/* The directory of a PCI device in sysfs. */
void doctor_pci_folder(const struct wh_pci *pci, char *out, size_t size);

/* ---- a registration that failed -------------------------------------------------------------- */

/* What the errno of a failed registration with a NIC means, and what to do; NULL: nothing is known
 * of it. */
struct registration {
	int error;
	const char *means, *fix;
};
const struct registration *doctor_registration(int error);
int doctor_explain(const char *text, bool json);

#endif
