"""A generator and a discriminator, in the manner of pytorch/examples/dcgan."""

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.parallel
import torch.optim as optim

torch.manual_seed(7)
cudnn.benchmark = True
ngpu, nz, ngf = 1, 5, 4
device = torch.device("cuda:0" if torch.cuda.is_available() and ngpu > 0 else "cpu")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ngf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ngf, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


netG, netD = Generator(ngpu), Discriminator(ngpu)
netG.apply(weights_init)
netD.apply(weights_init)
noises, images = torch.randn(3, 6, nz, 1, 1), torch.rand(3, 6, 1, 8, 8)
netG, netD = netG.to(device), netD.to(device)
if device.type == "cuda" and ngpu > 1:
    netD = nn.DataParallel(netD, list(range(ngpu)))
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
for i in range(3):
    netD.zero_grad()
    real = images[i].to(device)
    label = torch.full((6,), 1, dtype=real.dtype, device=device)
    output = netD(real)
    errD_real = criterion(output, label)
    errD_real.backward()
    fake = netG(noises[i].to(device))
    label.fill_(0)
    errD_fake = criterion(netD(fake.detach()), label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1)
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
    print("Loss_D: %.4f Loss_G: %.4f" % ((errD_real + errD_fake).item(), errG.item()))
