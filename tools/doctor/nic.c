/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of RDMA NICs, and of GPU memory that they are to reach. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"

#define GIDS 256

/* True: there is nothing to look at. */
static bool without_rdma(const struct doctor *doctor, struct finding *finding)
{
	if (doctor_rdma(doctor))
		return false;
	if (doctor->topology)
		found_absent(finding, ABSENT_NIC);
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

/* A port of an RDMA NIC. */
struct port {
	const struct wh_nic *nic;
	int number;
	char name[WH_NAME + 16]; /* the NIC's, and ":2" where it has several */
	char folder[WH_NAME + 64];
	char layer[WH_NAME], netdev[WH_NAME]; /* "": not known */
};

struct ports {
	size_t at; /* of the NICs */
	const struct wh_nic *nic;
	struct wh_tree_names names; /* of its ports */
	size_t next;
};

static void open_port(const struct doctor *doctor, const struct ports *ports, struct port *out)
{
	const char *number = ports->names.count ? ports->names.name[ports->next] : "1";
	char folder[WH_TREE_PATH];

	*out = (struct port){ .nic = ports->nic, .number = atoi(number) };
	snprintf(out->name, sizeof(out->name), ports->names.count > 1 ? "%s:%d" : "%s",
		 ports->nic->name, out->number);
	snprintf(out->folder, sizeof(out->folder), "/sys/class/infiniband/%s/ports/%d",
		 ports->nic->name, out->number);
	wh_tree_line(&doctor->tree, out->folder, "link_layer", out->layer, sizeof(out->layer));
	snprintf(folder, sizeof(folder), "%s/gid_attrs/ndevs", out->folder);
	/* The interface of a NIC with one port is the device's. */
	if (wh_tree_line(&doctor->tree, folder, "0", out->netdev, sizeof(out->netdev)) &&
	    ports->names.count <= 1)
		snprintf(out->netdev, sizeof(out->netdev), "%s", ports->nic->netdev);
}

/* The ports of all RDMA NICs, one after the other; start with { 0 }. A NIC that shows none has
 * port 1. False: no more. */
static bool next_port(const struct doctor *doctor, struct ports *ports, struct port *out)
{
	char folder[WH_TREE_PATH];

	if (ports->nic && ++ports->next < ports->names.count) {
		open_port(doctor, ports, out);
		return true;
	}
	wh_tree_names_free(&ports->names);
	ports->next = 0;
	ports->nic = next_nic(doctor, &ports->at);
	if (!ports->nic)
		return false;
	snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports", ports->nic->name);
	if (wh_tree_list(&doctor->tree, folder, &ports->names))
		ports->names = (struct wh_tree_names){ 0 };
	open_port(doctor, ports, out);
	return true;
}

/* What to call it in a command: its interface, if that is known. */
static const char *interface_of(const struct port *port)
{
	return *port->netdev ? port->netdev : "IFACE";
}

/* "4: ACTIVE"; "400 Gb/sec (4X NDR)". */
static void port_state(const struct doctor *doctor, const struct port *port, char state[64],
		       char rate[64])
{
	char text[64], *end;
	const char *colon;
	double value;

	if (wh_tree_line(&doctor->tree, port->folder, "state", text, sizeof(text)))
		*text = '\0';
	colon = strstr(text, ": ");
	snprintf(state, 64, "%s", colon ? colon + 2 : text);
	if (wh_tree_line(&doctor->tree, port->folder, "rate", text, sizeof(text)))
		*text = '\0';
	value = strtod(text, &end);
	if (end > text && value > 0)
		snprintf(rate, 64, "%.4g Gbit/s", value);
	else
		snprintf(rate, 64, "its rate is not known");
}

static void nic_port(const struct doctor *doctor, struct finding *finding)
{
	struct ports ports = { 0 };
	struct port port;
	size_t up = 0;

	if (without_rdma(doctor, finding))
		return;
	while (next_port(doctor, &ports, &port)) {
		char state[64], rate[64];

		port_state(doctor, &port, state, rate);
		if (!*state) {
			found(finding, UNKNOWN, "%s: its state is not known", port.name);
		} else if (strcmp(state, "ACTIVE") == 0) {
			up++;
			found(finding, PASS, "%s: active, %s", port.name, rate);
		} else {
			found(finding, WARN, "%s: %s", port.name, state);
			advise(finding,
			       "look at the cable and the switch's port; ip link set %s up; "
			       "InfiniBand needs a subnet manager",
			       interface_of(&port));
		}
	}
	if (!up && finding->verdict == WARN)
		found(finding, FAIL, "no port is active");
}

static void check_mtu(const char *name, const char *netdev, int mtu, int most,
		      struct finding *finding)
{
	if (mtu < 0 || most < 0) {
		found(finding, UNKNOWN, "%s: libibverbs does not tell", name);
	} else if (mtu < most) {
		found(finding, WARN, "%s: %d bytes, and could be %d", name, mtu, most);
		advise(finding,
		       "RoCE: ip link set %s mtu 4200, or 9000, on all hosts and "
		       "switches; InfiniBand: the subnet manager's partition",
		       netdev);
	} else {
		found(finding, PASS, "%s: %d bytes", name, mtu);
	}
}

static void nic_mtu(const struct doctor *doctor, struct finding *finding)
{
	struct ports ports = { 0 };
	struct port port;

	if (without_rdma(doctor, finding))
		return;
	while (next_port(doctor, &ports, &port)) {
		const struct verbs_fact *verbs = verbs_of(doctor, port.nic->name);

		if (verbs && verbs->late)
			found(finding, UNKNOWN, "%s: no answer in time", port.name);
		else if (!verbs || port.number < 1 || port.number > FACTS_PORTS)
			check_mtu(port.name, "", -1, -1, finding);
		else
			check_mtu(port.name, interface_of(&port), verbs->mtu[port.number - 1],
				  verbs->mtu_most[port.number - 1], finding);
	}
}

/* "fe80:0000:..." with nothing behind its prefix, or only zeros, is no address of a host. */
static bool is_gid(const char *gid)
{
	return strspn(gid, "0:") != strlen(gid);
}

/* Which entry of the table is RoCE v2, best of an IPv4 address? -1: none; -ENOENT as a number of
 * errno where there is no table. */
static int choose_gid(const struct doctor *doctor, const struct port *port, char gid[64],
		      int *error)
{
	char folder[WH_TREE_PATH], type[32], text[64], number[16];
	int chosen = -1;

	*error = 0;
	for (int i = 0; i < GIDS; i++) {
		int missing;

		snprintf(folder, sizeof(folder), "%s/gid_attrs/types", port->folder);
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
		snprintf(folder, sizeof(folder), "%s/gids", port->folder);
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
	struct ports ports = { 0 };
	struct port port;

	if (without_rdma(doctor, finding))
		return;
	while (next_port(doctor, &ports, &port)) {
		char gid[64] = "";
		int error, index;

		if (strcmp(port.layer, "Ethernet") != 0) {
			found(finding, PASS, "%s: %s needs none", port.name,
			      *port.layer ? port.layer : "-");
			continue;
		}
		index = choose_gid(doctor, &port, gid, &error);
		if (error) {
			found(finding, UNKNOWN, "%s: its table of GIDs: %s", port.name,
			      strerror(-error));
		} else if (index < 0) {
			found(finding, FAIL, "%s: no GID for RoCE v2", port.name);
			advise(finding,
			       "give %s an IP address; then cma_roce_mode, or gid_attrs, shows "
			       "RoCE v2",
			       interface_of(&port));
		} else {
			found(finding, PASS, "%s: index %d (%s)", port.name, index, gid);
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
	struct ports ports = { 0 };
	struct port port;

	if (without_rdma(doctor, finding))
		return;
	while (next_port(doctor, &ports, &port)) {
		char folder[WH_TREE_PATH], pfc[64];
		int ecn, error;

		if (strcmp(port.layer, "Ethernet") != 0) {
			found(finding, PASS, "%s: %s has flow control of its own", port.name,
			      *port.layer ? port.layer : "-");
			continue;
		}
		snprintf(folder, sizeof(folder), "/sys/class/net/%s/ecn/roce_np/enable",
			 port.netdev);
		ecn = any_set(doctor, folder, 8);
		snprintf(folder, sizeof(folder), "/sys/class/net/%s/qos", port.netdev);
		error = wh_tree_line(&doctor->tree, folder, "pfc", pfc, sizeof(pfc));
		if (ecn < 0 && error) {
			found(finding, UNKNOWN, "%s: the driver does not show PFC and ECN in sysfs",
			      port.name);
			advise(finding, "mlnx_qos -i %s and dcb pfc show dev %s show it",
			       interface_of(&port), interface_of(&port));
		} else if (ecn == 1 || (!error && strspn(pfc, "0, ") != strlen(pfc))) {
			found(finding, PASS, "%s: ECN %s, PFC %s", port.name,
			      ecn == 1 ? "on" : "off", error ? "-" : pfc);
		} else {
			found(finding, WARN,
			      "%s: neither ECN nor PFC is on: RoCE loses packets under "
			      "load",
			      port.name);
			advise(finding,
			       "mlnx_qos -i %s --pfc 0,0,0,1,0,0,0,0 --trust dscp, and the "
			       "same on the switch",
			       interface_of(&port));
		}
	}
}

/* What the drivers of the kernel call packets that were lost or came twice: those of mlx5, bnxt_re,
 * irdma (its retransmits, before and since Linux 6.17), efa, mlx4, rxe. Some count a device, and
 * not its ports. */
static const char *const lost[] = {
	"out_of_sequence",
	"packet_seq_err",
	"local_ack_timeout_err",
	"rnr_nak_retry_err",
	"roce_adp_retrans",
	"rx_icrc_encapsulated",
	"to_retransmits",
	"seq_err_naks_rcvd",
	"max_retry_exceeded",
	"oos_drop_count",
	"rx_roce_discards",
	"tcpRetransSegs",
	"RetransSegs",
	"rx_drops",
	"retrans_pkts",
	"retrans_timeout_events",
	"rq_num_oos",
	"sq_num_oos",
	"sq_num_to",
	"out_of_seq_request",
	"rcvd_seq_err",
	"retry_exceeded_err",
};
static const char *const congested[] = { "np_cnp_sent", "rp_cnp_handled", "tx_cnp_pkts",
					 "rx_cnp_pkts", "cnpSent",        "cnpHandled" };

/* How many of both there are in a folder. */
static size_t count_in(const struct doctor *doctor, const char *folder, const char *name,
		       struct finding *finding)
{
	size_t seen = 0;
	int64_t value;

	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
		if (wh_tree_number(&doctor->tree, folder, lost[i], &value))
			continue;
		seen++;
		if (value <= 0)
			continue;
		found(finding, WARN, "%s: %s %lld", name, lost[i], (long long)value);
		advise(finding, "packets were lost since the driver was loaded: look at PFC and "
				"ECN on the way, cables, and whether it still grows");
	}
	for (size_t i = 0; i < sizeof(congested) / sizeof(congested[0]); i++) {
		if (wh_tree_number(&doctor->tree, folder, congested[i], &value))
			continue;
		seen++;
		if (value > 0)
			found(finding, INFO, "%s: %s %lld: there was congestion", name,
			      congested[i], (long long)value);
	}
	return seen;
}

static void nic_counters(const struct doctor *doctor, struct finding *finding)
{
	struct ports ports = { 0 };
	struct port port;

	if (without_rdma(doctor, finding))
		return;
	while (next_port(doctor, &ports, &port)) {
		char folder[WH_TREE_PATH];
		size_t seen;

		snprintf(folder, sizeof(folder), "%s/hw_counters", port.folder);
		seen = count_in(doctor, folder, port.name, finding);
		snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/hw_counters",
			 port.nic->name);
		if (!ports.next)
			seen += count_in(doctor, folder, port.nic->name, finding);
		if (seen)
			found(finding, PASS, "%s: counted", port.name);
		else
			found(finding, UNKNOWN, "%s: no hw_counters that are known here",
			      port.name);
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
		found(finding, FAIL, "%s registers the memory of %s but does not move it: %s: %s",
		      nic->name, address, strerror(moved), why);
		advise(finding,
		       "PCIe between them: see pci.acs and pci.iommu; dmesg tells of faults");
	} else if (moved < 0 && *why) {
		found(finding, WARN, "%s takes the memory of %s, but moves nothing at all: %s",
		      nic->name, address, why);
		advise(finding, "see nic.port, nic.gid and limit.memlock");
	} else {
		found(finding, PASS, "%s %s the memory of %s (%s)", nic->name,
		      moved ? "takes" : "writes and reads", address,
		      dma_buf ? "dma-buf" : "peermem");
	}
}

static void nic_gpu(const struct doctor *doctor, struct finding *finding)
{
	size_t tried = 0;

	if (without_rdma(doctor, finding))
		return;
	if (!doctor_gpus(doctor)) {
		found_absent(finding, ABSENT_GPU);
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
		found(finding, UNKNOWN,
		      "no pair of GPU and NIC could be tried: CUDA did not start in time");
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
		found_absent(finding, ABSENT_GPU);
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
		found(finding, PASS, "%s is there",
		      !module ? "nvidia-peermem" : "/sys/kernel/mm/memory_peers");
	} else if (module != -ENOENT) {
		found(finding, UNKNOWN, "/sys/module/nvidia_peermem: %s", strerror(-module));
	} else if (dma_buf) {
		found(finding, INFO, "not loaded, and not needed: there is dma-buf registration");
	} else if (late) {
		found(finding, UNKNOWN, "not loaded; not all NICs and GPUs answered in time");
	} else {
		found(finding, WARN,
		      "neither nvidia-peermem nor dma-buf registration: NICs do not "
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
		found(finding,
		      !refused                                ? PASS :
		      refused == -EACCES || refused == -EPERM ? FAIL :
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
	{ "nic.gpu", "GPU memory registered, written and read by each NIC", nic_gpu,
	  NEEDS_NVML | NEEDS_MOVE },
	{ "nic.peermem", "nvidia-peermem", nic_peermem, NEEDS_NVML | NEEDS_MEMORY },
	{ 0 },
};
