#!/bin/sh
# The first process of a real node, in its namespaces (network, mounts, processes, cgroups, host name, IPC). It creates the node's root
# directory, with only programs and devices of the host, then keeps the namespaces open. When it ends, the kernel ends all
# processes and mounts of the node.
# Usage: root.sh NAME WORK NODE_PROGRAMS CONTAINERD CNI DEBIAN_ROOT VAR   (VAR: tmpfs, or disk for a folder below WORK)
set -eu
name=$1 work=$2 node=$3 containerd=$4 cni=$5 debian=$6 var=$7
root=$work/root
mkdir -p "$root" "$work/var" "$work/opt/cni/bin"
cp "$cni"/* "$work/opt/cni/bin/"
echo "$name" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 netaware-lab "$root"
cd "$root"
mkdir usr etc dev proc sys run tmp var opt mnt root home old
for top in bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$top" ]; then cp -P "/$top" "$top"; elif [ -d "/$top" ]; then mkdir "$top"; mount --bind "/$top" "$top"; mount -o remount,bind,ro "$top"; fi
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
# The root of the cgroup namespace is the node's own cgroup.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  # In version 2, a cgroup with controllers for its children may not have processes.
  mkdir sys/fs/cgroup/init
  echo 1 > sys/fs/cgroup/init/cgroup.procs
  sed 's/\([a-z]\+\)/+\1/g' sys/fs/cgroup/cgroup.controllers > sys/fs/cgroup/cgroup.subtree_control
else
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  while IFS=: read -r _ controllers _; do
    case $controllers in
      "") mkdir sys/fs/cgroup/unified; mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
      name=*) mkdir "sys/fs/cgroup/${controllers#name=}"; mount -t cgroup -o "none,$controllers" cgroup "sys/fs/cgroup/${controllers#name=}" ;;
      *)
        mkdir "sys/fs/cgroup/$controllers"
        mount -t cgroup -o "$controllers" cgroup "sys/fs/cgroup/$controllers"
        for controller in $(echo "$controllers" | tr , ' '); do
          [ -e "sys/fs/cgroup/$controller" ] || ln -s "$controllers" "sys/fs/cgroup/$controller"
        done ;;
    esac
  done < /proc/self/cgroup
fi
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mkdir run/netns
if [ "$var" = tmpfs ]; then mount -t tmpfs -o mode=755 var var; else mount --bind "$work/var" var; fi
# A previous start may have left the file on disk.
rm -f var/.ready
mkdir -p var/lib/kubelet var/lib/containerd var/log var/tmp
mount --bind "$work/etc" etc
mount --bind "$work/opt" opt
mkdir -p opt/node opt/containerd opt/debian
mount --bind "$node" opt/node
mount --bind "$containerd" opt/containerd
mount --bind "$debian" opt/debian
ln -s /run var/run 2>/dev/null || true
# The kubelet would set these for the whole machine. Files of the node already have the values that it wants.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=${setting%=*}
  [ -e "proc/sys/$file" ] || continue
  mkdir -p "run/settings/${file%/*}"
  echo "${setting#*=}" > "run/settings/$file"
  mount --bind "run/settings/$file" "proc/sys/$file"
done
pivot_root . old
cd /
umount -l /old
rmdir /old
mount --make-rshared /
: > /var/.ready
trap 'exit 0' TERM INT
while :; do
  sleep 86400 &
  wait $! || true
done
