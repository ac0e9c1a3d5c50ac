/* SPDX-License-Identifier: Apache-2.0 */
/* What the errno of a failed memory registration with a NIC means, and how to fix it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "doctor/doctor.h"
#include "output.h"

static const struct registration registrations[] = {
	{ EFAULT,
	  "GPU memory was passed to plain ibv_reg_mr(), and no kernel module resolves its "
	  "addresses",
	  "load nvidia-peermem (modprobe nvidia-peermem), or register by dma-buf: open NVIDIA "
	  "kernel modules and a NIC driver with ibv_reg_dmabuf_mr()" },
	{ EPROTONOSUPPORT, "the NIC's driver or the kernel has no dma-buf registration",
	  "Linux 5.12 and rdma-core 34 or later, with a NIC driver that has it (mlx5, efa, irdma); "
	  "or nvidia-peermem" },
	{ EOPNOTSUPP, "the NIC's driver or the kernel has no dma-buf registration",
	  "Linux 5.12 and rdma-core 34 or later, with a NIC driver that has it (mlx5, efa, irdma); "
	  "or nvidia-peermem" },
	{ ENOMEM, "a limit is reached: locked memory of the process, or the GPU's BAR1",
	  "ulimit -l unlimited (LimitMEMLOCK=infinity, docker --ulimit memlock=-1); for BAR1 see "
	  "nvidia-smi -q -d MEMORY, and register less at once" },
	{ EINVAL,
	  "the range spans several allocations: memory of cuMemCreate() that was mapped side by "
	  "side",
	  "register each mapping on its own, page-aligned" },
	{ EAGAIN, "the NIC has no memory keys left; with 'CREATE_MKEY' in dmesg they leaked",
	  "end the processes that hold registrations; if that does not help, reset the NIC's "
	  "function" },
	{ EIO, "the range is larger than the NIC's max_mr_size, or the NIC has failed",
	  "register chunks of at most 4 GiB; see dmesg for messages of the NIC's driver" },
	{ EPERM, "this process may not lock that much memory, or may not use the device",
	  "raise the limit of locked memory, and allow /dev/infiniband/uverbs* in this container" },
	{ EBADF,
	  "the file descriptor is invalid; a probe with -1 that fails like this shows that the NIC "
	  "supports dma-buf registration",
	  "nothing after a probe; else pass the descriptor that the export returned" },
};

const struct registration *doctor_registration(int error)
{
	for (size_t i = 0; i < sizeof(registrations) / sizeof(registrations[0]); i++)
		if (registrations[i].error == error)
			return &registrations[i];
	return NULL;
}

int doctor_explain(const char *text, bool json)
{
	const char *name;
	int error = errno_parse(text, &name);
	const struct registration *registration = doctor_registration(error);

	if (!error)
		return usage_error("--errno: '%s' is no errno; use 14, -14 or EFAULT", text);
	if (json) {
		json_t *object = output_new();

		json_object_set_new(object, "errno", json_integer(error));
		json_object_set_new(object, "name", json_string(name));
		json_object_set_new(object, "means",
				    output_text(registration ? registration->means : NULL));
		json_object_set_new(object, "fix",
				    output_text(registration ? registration->fix : NULL));
		return output_print(object);
	}
	printf("%s (%d): %s\n", name, error, strerror(error));
	if (registration)
		printf("After a registration: %s.\nTry: %s.\n", registration->means,
		       registration->fix);
	else
		printf("Nothing is known about it after a registration. wherry explain --errno %s\n"
		       "says what it means elsewhere in Wherry.\n",
		       name);
	return EXIT_PASS;
}
