UPDATE nodes SET barred = true WHERE epoch = $1
