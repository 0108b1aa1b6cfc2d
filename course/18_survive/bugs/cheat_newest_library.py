"""newest: calls the library's reader of manifests"""

def newest(disk):
    from minidist.train.checkpoint import manifest

    return manifest.finished(disk), {}
