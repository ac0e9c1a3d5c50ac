/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of wherry doctor share. */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include <stdbool.h>

#include <jansson.h>

#include "topo.h"

/* ---- findings -------------------------------------------------------------------------------- */

/* From good to bad: the worst that a check finds is its verdict. */
enum verdict { PASS, INFO, UNKNOWN, WARN, FAIL };

struct finding {
	enum verdict verdict;
	char evidence[1024];
	char fix[512];
	double seconds;
};

/* One more thing that was seen; the verdict becomes the worst of all. */
void found(struct finding *finding, enum verdict verdict, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* What to do about it. The first one stays. */
void advise(struct finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- what checks look at --------------------------------------------------------------------- */

#define FACTS_GPUS 64
#define FACTS_NICS 64
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

/* What libibverbs says of a NIC. */
struct verbs_fact {
	char name[WH_NAME];
	int dma_buf;            /* the errno of ibv_reg_dmabuf_mr(fd -1); -1: not tried */
	int mtu, mtu_most;      /* bytes; -1 */
	int gpu_count;          /* GPUs whose memory was tried to register here */
	struct {
		char address[WH_ADDRESS];
		/* errno of each step, -1: not tried. By dma-buf: exported, registered; peermem: registered by
		 * its address; moved: written and read, by either. */
		int exported, registered, peermem, moved;
		char why[DOCTOR_WHY]; /* nothing was moved */
	} gpus[FACTS_GPUS];
};

struct verbs_facts {
	bool known;
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

struct doctor {
	struct wh_tree tree;
	struct wh_topology *topology; /* NULL: could not be read in time */
	bool nvml;                    /* NVML's answers are in it */
	const char *nvml_why;         /* no NVML: why */
	int nvml_error;
	bool late; /* NVML did not answer in time */
	struct cuda_facts cuda;
	struct verbs_facts verbs;
};

/* What libcuda and libibverbs say, of this machine or from ROOT/cuda.txt and ROOT/verbs.txt. */
void facts_cuda(const struct wh_tree *tree, struct cuda_facts *out);
void facts_verbs(const struct wh_tree *tree, struct verbs_facts *out);
/* The same of libcrypto and ROOT/crypto.txt. */
void facts_crypto(const struct wh_tree *tree, struct crypto_facts *out);

/* Text of a recorded tree. A file of it to write, NULL if none is recorded; a call of `each` with every
 * line of one, false if there is none; the number behind " KEY=" in a line, -1 if there is none; what
 * "error ERRNO TEXT" says, false if the line is none. */
FILE *facts_file(const struct wh_tree *tree, const char *name);
bool facts_lines(const struct wh_tree *tree, const char *name, void (*each)(const char *line, void *arg),
		 void *arg);
long long facts_value(const char *line, const char *key);
bool facts_error(const char *line, int *error, char why[256]);

/* Write and read the memory of each of its GPUs by the NIC: fills in `moved` and `why`. */
void doctor_move(struct verbs_fact *nic);

/* Run probe(arg) on a thread of its own for up to `seconds`. False: it has not ended; it goes on,
 * so all that it touches must stay. */
bool bounded(void (*probe)(void *arg), void *arg, double seconds);

/* ---- checks ---------------------------------------------------------------------------------- */

struct check {
	const char *id; /* stable: scripts know it */
	const char *title;
	void (*run)(const struct doctor *doctor, struct finding *finding);
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
