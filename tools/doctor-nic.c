/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of RDMA NICs, and of GPU memory that they are to reach. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define GIDS 256

static void no_rdma(struct finding *finding)
{
	found(finding, INFO, "no RDMA NIC here");
}

/* True: there is nothing to look at. */
static bool without_rdma(const struct doctor *doctor, struct finding *finding)
{
	if (doctor_rdma(doctor))
		return false;
	if (doctor->topology)
		no_rdma(finding);
	else
		found(finding, UNKNOWN, "sysfs could not be read in time");
	return true;
}

/* The next RDMA NIC; NULL: no more. */
static const struct wh_nic *next_nic(const struct doctor *doctor, size_t *at)
{
	while (doctor->topology && *at < doctor->topology->nic_count) {
		const struct wh_nic *nic = &doctor->topology->nics[(*at)++];

		if (nic->rdma == 1)
			return nic;
	}
	return NULL;
}

static const struct verbs_fact *verbs_of(const struct doctor *doctor, const char *name)
{
	for (int i = 0; i < doctor->verbs.count; i++)
		if (strcmp(doctor->verbs.nics[i].name, name) == 0)
			return &doctor->verbs.nics[i];
	return NULL;
}

/* ---- ports ----------------------------------------------------------------------------------- */

static void nic_port(const struct doctor *doctor, struct finding *finding)
{
	const struct wh_nic *nic;
	size_t at = 0, up = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		bool active = strcmp(nic->state, "ACTIVE") == 0;

		up += active;
		if (!*nic->state) {
			found(finding, UNKNOWN, "%s: its state is not known", nic->name);
		} else if (active) {
			found(finding, PASS, "%s: active, %.4g Gbit/s", nic->name,
			      isnan(nic->rate) ? 0 : nic->rate);
		} else {
			found(finding, WARN, "%s: %s", nic->name, nic->state);
			advise(finding,
			       "look at the cable and the switch's port; ip link set %s up; "
			       "InfiniBand needs a subnet manager",
			       *nic->netdev ? nic->netdev : nic->name);
		}
	}
	if (!up && finding->verdict == WARN)
		found(finding, FAIL, "no port is active");
}

static void nic_mtu(const struct doctor *doctor, struct finding *finding)
{
	const struct wh_nic *nic;
	size_t at = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		const struct verbs_fact *verbs = verbs_of(doctor, nic->name);

		if (verbs && verbs->late) {
			found(finding, UNKNOWN, "%s: no answer in time", nic->name);
		} else if (!verbs || verbs->mtu < 0 || verbs->mtu_most < 0) {
			found(finding, UNKNOWN, "%s: libibverbs does not tell", nic->name);
		} else if (verbs->mtu < verbs->mtu_most) {
			found(finding, WARN, "%s: %d bytes, and could be %d", nic->name, verbs->mtu,
			      verbs->mtu_most);
			advise(finding, "RoCE: ip link set %s mtu 4200, or 9000, on all hosts and "
					"switches; InfiniBand: the subnet manager's partition",
			       *nic->netdev ? nic->netdev : "IFACE");
		} else {
			found(finding, PASS, "%s: %d bytes", nic->name, verbs->mtu);
		}
	}
}

/* "fe80:0000:..." with nothing behind its prefix, or only zeros, is no address of a host. */
static bool is_gid(const char *gid)
{
	return strspn(gid, "0:") != strlen(gid);
}

/* Which entry of the table is RoCE v2, best of an IPv4 address? -1: none; -ENOENT as a number of
 * errno where there is no table. */
static int choose_gid(const struct doctor *doctor, const struct wh_nic *nic, char gid[64],
		      int *error)
{
	char folder[WH_TREE_PATH], type[32], text[64], number[16];
	int chosen = -1;

	*error = 0;
	for (int i = 0; i < GIDS; i++) {
		int missing;

		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/gid_attrs/types",
			 nic->name);
		snprintf(number, sizeof(number), "%d", i);
		missing = wh_tree_line(&doctor->tree, folder, number, type, sizeof(type));
		/* An entry that is not in use reads as EINVAL. */
		if (missing == -ENOENT || missing == -ENOTDIR || missing == -EACCES) {
			if (!i)
				*error = missing;
			break;
		}
		if (missing || strcmp(type, "RoCE v2") != 0)
			continue;
		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/gids",
			 nic->name);
		if (wh_tree_line(&doctor->tree, folder, number, text, sizeof(text)) ||
		    !is_gid(text))
			continue;
		/* ::ffff:a.b.c.d */
		if (chosen < 0 || strncmp(text, "0000:0000:0000:0000:0000:ffff:", 30) == 0) {
			chosen = i;
			memcpy(gid, text, 64);
			if (strncmp(text, "0000:0000:0000:0000:0000:ffff:", 30) == 0)
				break;
		}
	}
	return chosen;
}

static void nic_gid(const struct doctor *doctor, struct finding *finding)
{
	const struct wh_nic *nic;
	size_t at = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		char gid[64] = "";
		int error, index;

		if (strcmp(nic->layer, "Ethernet") != 0) {
			found(finding, PASS, "%s: %s needs none", nic->name,
			      *nic->layer ? nic->layer : "-");
			continue;
		}
		index = choose_gid(doctor, nic, gid, &error);
		if (error) {
			found(finding, UNKNOWN, "%s: its table of GIDs: %s", nic->name,
			      strerror(-error));
		} else if (index < 0) {
			found(finding, FAIL, "%s: no GID for RoCE v2", nic->name);
			advise(finding,
			       "give %s an IP address; then cma_roce_mode, or gid_attrs, shows "
			       "RoCE v2",
			       *nic->netdev ? nic->netdev : nic->name);
		} else {
			found(finding, PASS, "%s: index %d (%s)", nic->name, index, gid);
		}
	}
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Is a flag of a list of files set? 1, 0, or -1 if none is there. */
static int any_set(const struct doctor *doctor, const char *folder, int count)
{
	int seen = -1;

	for (int i = 0; i < count; i++) {
		char number[16];
		int64_t value;

		snprintf(number, sizeof(number), "%d", i);
		if (wh_tree_number(&doctor->tree, folder, number, &value))
			continue;
		if (value)
			return 1;
		seen = 0;
	}
	return seen;
}

static void nic_flow(const struct doctor *doctor, struct finding *finding)
{
	const struct wh_nic *nic;
	size_t at = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		char folder[WH_TREE_PATH], pfc[64];
		int ecn, error;

		if (strcmp(nic->layer, "Ethernet") != 0) {
			found(finding, PASS, "%s: %s has flow control of its own", nic->name,
			      *nic->layer ? nic->layer : "-");
			continue;
		}
		snprintf(folder, sizeof(folder), "/sys/class/net/%s/ecn/roce_np/enable",
			 nic->netdev);
		ecn = any_set(doctor, folder, 8);
		snprintf(folder, sizeof(folder), "/sys/class/net/%s/qos", nic->netdev);
		error = wh_tree_line(&doctor->tree, folder, "pfc", pfc, sizeof(pfc));
		if (ecn < 0 && error) {
			found(finding, UNKNOWN, "%s: the driver does not show PFC and ECN in sysfs",
			      nic->name);
			advise(finding, "mlnx_qos -i %s and dcb pfc show dev %s show it",
			       *nic->netdev ? nic->netdev : "IFACE",
			       *nic->netdev ? nic->netdev : "IFACE");
		} else if (ecn == 1 || (!error && strspn(pfc, "0, ") != strlen(pfc))) {
			found(finding, PASS, "%s: ECN %s, PFC %s", nic->name,
			      ecn == 1 ? "on" : "off", error ? "-" : pfc);
		} else {
			found(finding, WARN,
			      "%s: neither ECN nor PFC is on: RoCE loses packets under "
			      "load",
			      nic->name);
			advise(finding,
			       "mlnx_qos -i %s --pfc 0,0,0,1,0,0,0,0 --trust dscp, and the "
			       "same on the switch",
			       *nic->netdev ? nic->netdev : "IFACE");
		}
	}
}

static void nic_counters(const struct doctor *doctor, struct finding *finding)
{
	static const char *const bad[] = { "out_of_sequence", "packet_seq_err",
					   "local_ack_timeout_err", "rnr_nak_retry_err",
					   "roce_adp_retrans", "rx_icrc_encapsulated" };
	static const char *const marks[] = { "np_cnp_sent", "rp_cnp_handled" };
	const struct wh_nic *nic;
	size_t at = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		char folder[WH_TREE_PATH];
		size_t seen = 0;
		int64_t value;

		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports/1/hw_counters",
			 nic->name);
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
			if (wh_tree_number(&doctor->tree, folder, bad[i], &value))
				continue;
			seen++;
			if (value <= 0)
				continue;
			found(finding, WARN, "%s: %s %lld", nic->name, bad[i], (long long)value);
			advise(finding,
			       "packets were lost since the driver was loaded: look at PFC and "
			       "ECN on the way, cables, and whether it still grows");
		}
		for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
			if (!wh_tree_number(&doctor->tree, folder, marks[i], &value) && value > 0)
				found(finding, INFO, "%s: %s %lld: there was congestion", nic->name,
				      marks[i], (long long)value);
		found(finding, seen ? PASS : UNKNOWN, "%s: %s", nic->name,
		      seen ? "counted" : "it has no hw_counters");
	}
}

/* ---- GPU memory ------------------------------------------------------------------------------ */

static void nic_dmabuf(const struct doctor *doctor, struct finding *finding)
{
	const struct wh_nic *nic;
	size_t at = 0;

	if (without_rdma(doctor, finding))
		return;
	while ((nic = next_nic(doctor, &at))) {
		const struct verbs_fact *verbs = verbs_of(doctor, nic->name);

		if (verbs && verbs->late) {
			found(finding, UNKNOWN, "%s: no answer in time", nic->name);
		} else if (!verbs || verbs->dma_buf < 0) {
			found(finding, UNKNOWN, "%s: %s", nic->name,
			      !doctor->verbs.known ? "libibverbs did not answer" :
			      *doctor->verbs.why   ? doctor->verbs.why :
						     "ibv_reg_dmabuf_mr() cannot be tried");
			advise(finding, "install rdma-core 34 or later (libibverbs.so.1)");
		} else if (verbs->dma_buf == EBADF) {
			found(finding, PASS, "%s: dma-buf registration is there", nic->name);
		} else {
			const struct registration *known = doctor_registration(verbs->dma_buf);

			found(finding, WARN, "%s: no dma-buf registration: %s", nic->name,
			      strerror(verbs->dma_buf));
			if (known)
				advise(finding, "%s", known->fix);
		}
	}
}

/* Neither way registers it: what each says. */
static void refused_memory(const struct verbs_fact *nic, int gpu, struct finding *finding)
{
	int exported = nic->gpus[gpu].exported, registered = nic->gpus[gpu].registered;
	const struct registration *known = doctor_registration(registered);

	if (exported < 0 || (!exported && registered < 0)) {
		found(finding, UNKNOWN, "%s with %s: could not be tried", nic->gpus[gpu].address,
		      nic->name);
	} else if (exported) {
		found(finding, FAIL, "%s exports no dma-buf: %s", nic->gpus[gpu].address,
		      strerror(exported));
		advise(finding, "open NVIDIA kernel modules: see driver.flavour and gpu.direct");
	} else {
		found(finding, FAIL, "%s does not take the memory of %s: %s%s%s", nic->name,
		      nic->gpus[gpu].address, strerror(registered), known ? ": " : "",
		      known ? known->means : "");
		if (known)
			advise(finding, "%s", known->fix);
	}
}

static void check_proof(const struct verbs_fact *nic, int gpu, struct finding *finding)
{
	const char *address = nic->gpus[gpu].address, *why = nic->gpus[gpu].why;
	bool dma_buf = !nic->gpus[gpu].exported && !nic->gpus[gpu].registered;
	int moved = nic->gpus[gpu].moved;

	if (nic->gpus[gpu].late) {
		found(finding, UNKNOWN, "%s with %s: there was no time for it", address, nic->name);
		return;
	}
	if (!dma_buf && nic->gpus[gpu].peermem) {
		refused_memory(nic, gpu, finding);
		return;
	}
	if (moved > 0) {
		found(finding, FAIL, "%s registers the memory of %s but does not move it: %s: %s", nic->name,
		      address, strerror(moved), why);
		advise(finding, "PCIe between them: see pci.acs and pci.iommu; dmesg tells of faults");
	} else if (moved < 0 && *why) {
		found(finding, WARN, "%s takes the memory of %s, but moves nothing at all: %s", nic->name,
		      address, why);
		advise(finding, "see nic.port, nic.gid and limit.memlock");
	} else {
		found(finding, PASS, "%s %s the memory of %s (%s)", nic->name,
		      moved ? "takes" : "writes and reads", address, dma_buf ? "dma-buf" : "peermem");
	}
}

static void nic_gpu(const struct doctor *doctor, struct finding *finding)
{
	size_t tried = 0;

	if (without_rdma(doctor, finding))
		return;
	if (!doctor_gpus(doctor)) {
		found(finding, INFO, "no NVIDIA GPU here");
		return;
	}
	for (int i = 0; i < doctor->verbs.count; i++) {
		const struct verbs_fact *nic = &doctor->verbs.nics[i];

		for (int k = 0; k < nic->gpu_count; k++, tried++)
			check_proof(nic, k, finding);
		if (nic->late)
			found(finding, UNKNOWN, "%s: no answer in time", nic->name);
		tried += nic->late;
	}
	if (doctor->verbs.cuda_late)
		found(finding, UNKNOWN, "no pair of GPU and NIC could be tried: CUDA did not start in time");
	else if (!tried)
		found(finding, UNKNOWN, "no pair of GPU and NIC could be tried%s%s",
		      *doctor->verbs.why ? ": " : "", doctor->verbs.why);
}

static void nic_peermem(const struct doctor *doctor, struct finding *finding)
{
	int module = wh_tree_exists(&doctor->tree, "/sys/module/nvidia_peermem"),
	    memory_peers = wh_tree_exists(&doctor->tree, "/sys/kernel/mm/memory_peers");
	bool dma_buf = false, taken = false, late = doctor->verbs.cuda_late;

	if (without_rdma(doctor, finding))
		return;
	if (!doctor_gpus(doctor)) {
		found(finding, INFO, "no NVIDIA GPU here");
		return;
	}
	for (int i = 0; i < doctor->verbs.count; i++) {
		const struct verbs_fact *nic = &doctor->verbs.nics[i];

		dma_buf |= nic->dma_buf == EBADF;
		late |= nic->late;
		for (int k = 0; k < nic->gpu_count; k++) {
			taken |= !nic->gpus[k].peermem;
			late |= nic->gpus[k].late && nic->gpus[k].peermem < 0;
			if (!nic->gpus[k].peermem)
				found(finding, PASS, "%s takes addresses of %s", nic->name,
				      nic->gpus[k].address);
		}
	}
	if (taken)
		return;
	if (!module || !memory_peers) {
		found(finding, PASS, "%s is there", !module ? "nvidia-peermem" :
							      "/sys/kernel/mm/memory_peers");
	} else if (module != -ENOENT) {
		found(finding, UNKNOWN, "/sys/module/nvidia_peermem: %s", strerror(-module));
	} else if (dma_buf) {
		found(finding, INFO, "not loaded, and not needed: there is dma-buf registration");
	} else if (late) {
		found(finding, UNKNOWN, "not loaded; not all NICs and GPUs answered in time");
	} else {
		found(finding, WARN, "neither nvidia-peermem nor dma-buf registration: NICs do not "
				     "reach GPU memory");
		advise(finding, "modprobe nvidia-peermem, or a NIC driver with dma-buf");
	}
}

static void nic_files(const struct doctor *doctor, struct finding *finding)
{
	struct wh_tree_names names;
	size_t devices = 0;
	int error;

	if (without_rdma(doctor, finding))
		return;
	error = wh_tree_list(&doctor->tree, "/dev/infiniband", &names);
	for (size_t i = 0; i < names.count; i++) {
		char path[WH_TREE_PATH];
		int refused;

		if (strncmp(names.name[i], "uverbs", 6) != 0)
			continue;
		devices++;
		snprintf(path, sizeof(path), "/dev/infiniband/%.64s", names.name[i]);
		refused = wh_tree_open(&doctor->tree, path, true);
		found(finding, !refused ? PASS : refused == -EACCES || refused == -EPERM ? FAIL :
											  UNKNOWN,
		      "%s: %s", path, refused ? strerror(-refused) : "opens");
		if (refused)
			advise(finding,
			       "the user needs the group of %s, or the container the device", path);
	}
	wh_tree_names_free(&names);
	if (error && error != -ENOENT) {
		found(finding, UNKNOWN, "/dev/infiniband: %s", strerror(-error));
	} else if (!devices) {
		found(finding, FAIL, "an RDMA NIC, but no /dev/infiniband/uverbs*");
		advise(finding, "modprobe ib_uverbs; in a container --device=/dev/infiniband");
	}
}

const struct check doctor_nic_checks[] = {
	{ "nic.port", "ports of RDMA NICs", nic_port, NEEDS_SYSFS },
	{ "nic.mtu", "MTU in use against what the port could", nic_mtu, NEEDS_SYSFS | NEEDS_VERBS },
	{ "nic.gid", "a GID for RoCE v2", nic_gid, NEEDS_SYSFS },
	{ "nic.flow", "PFC and ECN", nic_flow, NEEDS_SYSFS },
	{ "nic.counters", "packets that were lost", nic_counters, NEEDS_SYSFS },
	{ "nic.files", "device files of the NICs", nic_files, NEEDS_SYSFS },
	{ "nic.dmabuf", "NICs that take dma-bufs", nic_dmabuf, NEEDS_SYSFS | NEEDS_VERBS },
	{ "nic.gpu", "GPU memory registered, written and read by each NIC", nic_gpu, NEEDS_NVML | NEEDS_MOVE },
	{ "nic.peermem", "nvidia-peermem", nic_peermem, NEEDS_NVML | NEEDS_MEMORY },
	{ 0 },
};
