// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The device /dev/gdrdrv, its ioctls, the module's parameters and its files in /proc. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#ifdef CONFIG_X86
#include <asm/tsc.h>
#endif

#include "wherry_gdr.h"

static_assert(sizeof(struct gdrdrv_pin) == 40 && GDRDRV_IOC_PIN == 0xC028DA01);
static_assert(sizeof(struct gdrdrv_unpin) == 8 && GDRDRV_IOC_UNPIN == 0xC008DA02);
static_assert(sizeof(struct gdrdrv_callback_flag) == 16 && GDRDRV_IOC_CALLBACK_FLAG == 0xC008DA03);
static_assert(sizeof(struct gdrdrv_info) == 48 && GDRDRV_IOC_INFO == 0xC008DA04);
static_assert(sizeof(struct gdrdrv_info_v2) == 48 && GDRDRV_IOC_INFO_V2 == 0xC008DA05);
static_assert(sizeof(struct gdrdrv_attr) == 8 && GDRDRV_IOC_ATTR == 0xC008DA06);
static_assert(sizeof(struct gdrdrv_pin_v2) == 32 && GDRDRV_IOC_PIN_V2 == 0xC020DA07);
static_assert(sizeof(struct gdrdrv_req_mapping_type) == 16 &&
	      GDRDRV_IOC_REQ_MAPPING_TYPE == 0xC008DA08);
static_assert(sizeof(struct gdrdrv_version) == 8 && GDRDRV_IOC_VERSION == 0xC008DAFF);

int dbg_enabled;
module_param(dbg_enabled, int, 0444);
MODULE_PARM_DESC(dbg_enabled, "1: log everything");

int info_enabled;
module_param(info_enabled, int, 0444);
MODULE_PARM_DESC(info_enabled, "1: log what fails and what is taken away");

static int use_persistent_mapping = 1;
module_param(use_persistent_mapping, int, 0444);
MODULE_PARM_DESC(use_persistent_mapping,
		 "1: pins outlive the memory's being freed, if the NVIDIA driver can (default)");

static unsigned long max_pinned_per_user;
module_param(max_pinned_per_user, ulong, 0444);
MODULE_PARM_DESC(
	max_pinned_per_user,
	"MiB that each user may have pinned, 0: three quarters of the GPUs' BAR 1 (default)");

/* ---- ioctls ---------------------------------------------------------------------------------- */

bool is_owner(const struct client *client)
{
	return client->space == current->mm && client->owner == task_tgid(current);
}

static int do_pin(struct file *file, void *arguments)
{
	return region_pin(file->private_data, file->f_mapping, arguments, 0);
}

static int do_pin_v2(struct file *file, void *arguments)
{
	struct gdrdrv_pin_v2 *pin_v2 = arguments;
	struct gdrdrv_pin pin = { .addr = pin_v2->addr, .size = pin_v2->size };
	int error;

	if (pin_v2->flags & ~GDRDRV_PIN_FLAG_FORCE_PCIE)
		return -EINVAL;
	error = region_pin(file->private_data, file->f_mapping, &pin, pin_v2->flags);
	pin_v2->handle = pin.handle;
	return error;
}

static int do_unpin(struct file *file, void *arguments)
{
	struct gdrdrv_unpin *unpin = arguments;

	return region_unpin(file->private_data, unpin->handle);
}

static int do_callback_flag(struct file *file, void *arguments)
{
	struct gdrdrv_callback_flag *callback = arguments;
	struct region *region = region_find(file->private_data, callback->handle);

	if (!region)
		return -EINVAL;
	callback->flag = region_is_revoked(region);
	region_put(region);
	return 0;
}

static int do_info_v2(struct file *file, void *arguments)
{
	struct gdrdrv_info_v2 *info = arguments;
	struct region *region = region_find(file->private_data, info->handle);

	if (!region)
		return -EINVAL;
	info->va = region->address;
	info->mapped_size = region->size;
	info->page_size = GPU_PAGE_SIZE;
#ifdef CONFIG_X86
	info->tsc_khz = tsc_khz;
#else
	info->tsc_khz = 0;
#endif
	info->tm_cycles = region->cycles;
	mutex_lock(&region->lock);
	info->mapping_type =
		region->mapping && region->windows ? region->mapped_as : GDRDRV_MAPPING_NONE;
	mutex_unlock(&region->lock);
	region_put(region);
	return 0;
}

static int do_info(struct file *file, void *arguments)
{
	struct gdrdrv_info_v2 info = { .handle = *(__u64 *)arguments };
	int error = do_info_v2(file, &info);

	if (error)
		return error;
	*(struct gdrdrv_info *)arguments = (struct gdrdrv_info){
		.handle = info.handle,
		.va = info.va,
		.mapped_size = info.mapped_size,
		.page_size = info.page_size,
		.tsc_khz = info.tsc_khz,
		.tm_cycles = info.tm_cycles,
		.mapped = info.mapping_type != GDRDRV_MAPPING_NONE,
		.wc_mapping = info.mapping_type == GDRDRV_MAPPING_WC,
	};
	return 0;
}

static int do_attr(struct file *file, void *arguments)
{
	struct gdrdrv_attr *attr = arguments;

	switch (attr->attr) {
	case GDRDRV_ATTR_USE_PERSISTENT_MAPPING:
	case GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE: /* persistent pages only have this flag */
		attr->val = region_persistent();
		return 0;
	}
	return -EINVAL;
}

static int do_req_mapping_type(struct file *file, void *arguments)
{
	struct gdrdrv_req_mapping_type *request = arguments;
	struct region *region;
	int error = 0;

	if (request->mapping_type > GDRDRV_MAPPING_DEVICE)
		return -EINVAL;
	region = region_find(file->private_data, request->handle);
	if (!region)
		return -EINVAL;
	mutex_lock(&region->lock);
	if (region->windows)
		error = -EBUSY;
	else if (!map_possible(region, request->mapping_type))
		error = -EOPNOTSUPP;
	else
		region->requested = request->mapping_type;
	mutex_unlock(&region->lock);
	region_put(region);
	return error;
}

static int do_version(struct file *file, void *arguments)
{
	*(struct gdrdrv_version *)arguments = (struct gdrdrv_version){
		.driver = GDRDRV_VERSION_MAJOR << 16 | GDRDRV_VERSION_MINOR,
		.minimum_library = GDRDRV_MINIMUM_LIBRARY,
	};
	return 0;
}

static const struct operation {
	unsigned int number;
	unsigned int size;
	bool answers;
	int (*run)(struct file *file, void *arguments);
} operations[] = {
	{ GDRDRV_IOC_PIN, sizeof(struct gdrdrv_pin), true, do_pin },
	{ GDRDRV_IOC_UNPIN, sizeof(struct gdrdrv_unpin), false, do_unpin },
	{ GDRDRV_IOC_CALLBACK_FLAG, sizeof(struct gdrdrv_callback_flag), true, do_callback_flag },
	{ GDRDRV_IOC_INFO, sizeof(struct gdrdrv_info), true, do_info },
	{ GDRDRV_IOC_INFO_V2, sizeof(struct gdrdrv_info_v2), true, do_info_v2 },
	{ GDRDRV_IOC_ATTR, sizeof(struct gdrdrv_attr), true, do_attr },
	{ GDRDRV_IOC_PIN_V2, sizeof(struct gdrdrv_pin_v2), true, do_pin_v2 },
	{ GDRDRV_IOC_REQ_MAPPING_TYPE, sizeof(struct gdrdrv_req_mapping_type), false,
	  do_req_mapping_type },
	{ GDRDRV_IOC_VERSION, sizeof(struct gdrdrv_version), true, do_version },
};

static u64 pinned_handle(const struct operation *operation, const void *arguments)
{
	if (operation->run == do_pin)
		return ((const struct gdrdrv_pin *)arguments)->handle;
	return ((const struct gdrdrv_pin_v2 *)arguments)->handle;
}

static long device_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	/* As large and as aligned as the largest request. */
	struct gdrdrv_info arguments = {};
	const struct operation *operation = operations;
	void __user *user = (void __user *)argument;
	int error;

	if (_IOC_TYPE(number) != GDRDRV_IOCTL)
		return -EINVAL;
	if (!is_owner(file->private_data))
		return -EACCES;
	while (operation->number != number) {
		if (++operation == operations + ARRAY_SIZE(operations))
			return -ENOTTY;
	}
	if (copy_from_user(&arguments, user, operation->size))
		return -EFAULT;
	error = operation->run(file, &arguments);
	gdr_debug("ioctl %#x: %d\n", number, error);
	if (error || !operation->answers)
		return error;
	if (copy_to_user(user, &arguments, operation->size)) {
		/* User space has not received the handle: undo the pin. */
		if (operation->run == do_pin || operation->run == do_pin_v2)
			region_unpin(file->private_data, pinned_handle(operation, &arguments));
		return -EFAULT;
	}
	return 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static int device_open(struct inode *inode, struct file *file)
{
	struct client *client;

	if (!current->mm)
		return -EACCES; /* a kernel thread has no memory to pin */
	client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	client->user = user_get(file->f_cred->uid);
	if (!client->user) {
		kfree(client);
		return -ENOMEM;
	}
	client->space = current->mm;
	mmgrab(client->space);
	client->owner = get_pid(task_tgid(current));
	xa_init_flags(&client->regions, XA_FLAGS_ACCOUNT);
	file->private_data = client;
	return 0;
}

/* Runs at the last close, by the owner or by a process that inherited the descriptor. */
static int device_release(struct inode *inode, struct file *file)
{
	struct client *client = file->private_data;

	region_release_all(client);
	put_pid(client->owner);
	mmdrop(client->space);
	user_put(client->user);
	kfree(client);
	return 0;
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.mmap = map_window,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gdrdrv",
	.mode = 0666,
	.fops = &device_operations,
};

/* ---- /proc/driver/gdrdrv --------------------------------------------------------------------- */

static int show_params(struct seq_file *file, void *data)
{
	/* The kernel only knows whether a proprietary module has been loaded. */
	bool proprietary = test_taint(TAINT_PROPRIETARY_MODULE);

	seq_printf(file, "Version: %u.%u\n", GDRDRV_VERSION_MAJOR, GDRDRV_VERSION_MINOR);
	seq_printf(file, "Built for NVIDIA driver flavor: %s\n",
		   proprietary ? "proprietary" : "opensource");
	seq_printf(file, "Use persistent mapping: %s\n", region_persistent() ? "yes" : "no");
	seq_printf(file, "dbg_enabled: %d\n", dbg_enabled);
	seq_printf(file, "info_enabled: %d\n", info_enabled);
	return 0;
}

static int show_refcount(struct seq_file *file, void *data)
{
	seq_printf(file, "%lld\n", (long long)atomic64_read(&tables_held));
	return 0;
}

/* Refuse to load beside another driver with this interface, such as NVIDIA's gdrdrv. Creating its
 * directory a second time makes the kernel warn with a stack trace, which panic_on_warn turns into
 * a panic, and only a look-up by path can find the directory. Where proc or sysfs is mounted
 * elsewhere the look-up misses it, and the kernel itself refuses. */
static int __init check_free(const char *name)
{
	struct path path;

	if (kern_path(name, 0, &path))
		return 0;
	path_put(&path);
	pr_err("%s is there already: unload the other driver of that name (NVIDIA's gdrdrv?)\n",
	       name);
	return -EEXIST;
}

static int __init make_proc(struct proc_dir_entry **directory)
{
	*directory = proc_mkdir("driver/gdrdrv", NULL);
	if (!*directory)
		return -ENOMEM;
	if (proc_create_single("params", 0444, *directory, show_params) &&
	    proc_create_single("nv_get_pages_refcount", 0440, *directory, show_refcount))
		return 0;
	proc_remove(*directory);
	return -ENOMEM;
}

/* ---- the module ------------------------------------------------------------------------------ */

static struct proc_dir_entry *proc;

/* The sum of all GPUs' BAR 1, in bytes. Take each GPU's largest BAR: where BAR 0 has 64 bits, BAR 1
 * is not resource 1. */
static u64 __init bar_sizes(void)
{
	struct pci_dev *gpu = NULL;
	u64 sum = 0, largest;

	while ((gpu = pci_get_device(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID, gpu))) {
		if (gpu->class >> 16 != PCI_BASE_CLASS_DISPLAY)
			continue;
		largest = 0;
		for (int i = 0; i < PCI_STD_NUM_BARS; i++)
			largest = max_t(u64, largest, pci_resource_len(gpu, i));
		sum += largest;
	}
	return sum;
}

/* Store the effective value, so that the parameter shows it. */
static void __init set_limit(void)
{
	if (!max_pinned_per_user)
		max_pinned_per_user = bar_sizes() / 4 * 3 >> 20;
	max_pinned_per_user = min(max_pinned_per_user, ULONG_MAX >> 20);
	user_init((u64)max_pinned_per_user << 20);
}

static int __init wherry_gdr_init(void)
{
	static const char *const names[] __initconst = { "/proc/driver/gdrdrv",
							 "/sys/class/misc/gdrdrv" };
	int error = 0;

	for (size_t i = 0; !error && i < ARRAY_SIZE(names); i++)
		error = check_free(names[i]);
	if (!error)
		error = region_init(use_persistent_mapping);
	if (error)
		return error;
	set_limit();
	error = make_proc(&proc);
	if (error)
		goto err_region;
	error = misc_register(&device);
	if (error) {
		pr_err("cannot make the device gdrdrv: error %d\n", error);
		goto err_proc;
	}
	return 0;

err_proc:
	proc_remove(proc);
err_region:
	region_exit();
	return error;
}

static void __exit wherry_gdr_exit(void)
{
	misc_deregister(&device);
	proc_remove(proc);
	region_exit();
}

module_init(wherry_gdr_init);
module_exit(wherry_gdr_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_AUTHOR("The Wherry authors");
MODULE_DESCRIPTION("CPU windows onto NVIDIA GPU memory (/dev/gdrdrv)");
MODULE_VERSION("0.1.0");
MODULE_SOFTDEP("pre: nvidia");
